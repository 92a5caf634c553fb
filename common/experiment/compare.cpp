#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/text_table.h"
#include "common/experiment/clock_log.h"
#include "common/experiment/run.h"

namespace attn {
namespace {

constexpr Rounds paired_rounds{15, 50};
constexpr Rounds paired_host_rounds{6, 10};  // fewer, because the host's work may take seconds

}  // namespace

void Runner::run_duels() {
  int number = static_cast<int>(task_.cases().size() - 2 * task_.duels.size());
  size_t left = task_.duels.size(), left_out = 0;
  for (const Duel& duel : task_.duels) {
    if (interrupted()) return;
    std::optional<PairSamples> samples;
    if (const double left_s = task_.budget_s - spent_s(); left_s > 0) {
      tell("begin", label(duel.contender, label_axes_) + " against " + label(duel.baseline, label_axes_));
      const Stopwatch stopwatch;
      samples = sample_pair(duel, number, left_s / static_cast<double>(left));
      measured_s_ += stopwatch.seconds();
      if (interrupted()) return;
    } else {
      ++left_out;
    }
    send({{"duel", to_json(duel)}, {"samples", samples ? to_json(*samples) : Json()}});
    --left;
    number += 2;
  }
  if (left_out > 0 && task_.part == 0) {
    tell("note", fmt::format("left out: {}: {}", counted(left_out, "comparison"), budget_spent));
  }
}

std::optional<PairSamples> Runner::sample_pair(const Duel& duel, int number, double budget_s) {
  std::vector<Trial> trials;
  trials.push_back(new_trial(duel.baseline, number));
  trials.push_back(new_trial(duel.contender, number + 1));
  trials.push_back(new_trial(duel.baseline, number));
  std::optional<PairSamples> samples;
  const auto step = [&](Trial& trial, const auto& run) {
    port_->activity.at(trial.number);
    if (std::ranges::all_of(trials, &Trial::ok)) guarded(trial.record, run);
  };
  for (Trial& trial : trials) {
    step(trial, [&] { make(trial, &trial == &trials.back() ? makers_.apart : makers_.problem); });
  }
  // While the trials take turns, a failure cannot be blamed on one of them: the contender's record gets the failure.
  step(trials[1], [&] { samples = take_turns(trials, budget_s); });
  if (interrupted()) return std::nullopt;
  // A' differs from A only in its tensors, and is not checked.
  for (const size_t checked : {0, 1}) step(trials[checked], [&] { check_again(trials[checked]); });
  if (std::ranges::all_of(trials, &Trial::ok)) return samples;
  for (Trial& trial : trials) {
    if (trial.ok()) continue;
    trial.record.reason += " (in a comparison)";
    store(std::move(trial.record));
  }
  return std::nullopt;
}

PairSamples Runner::take_turns(const std::vector<Trial>& trials, double budget_s) {
  Scope scope = Scope::device_hot;
  if (std::ranges::any_of(trials, [](const Trial& trial) { return trial.host != nullptr; })) scope = Scope::host;
  if (std::ranges::any_of(trials, [&](const Trial& trial) { return judged_cold(trial); })) scope = Scope::device_cold;
  // All hot samplers take the same number of launches per sample, so that only the cases differ.
  int launches = 1;
  for (const Trial& trial : trials) launches = std::max(launches, launches_of_sample(device_, trial));
  // In every second process A' begins: the error that a drift leaves in A B A' has the opposite sign in A' B A.
  std::vector<size_t> order = {0, 1, 2};
  if (task_.part > 0 && task_.part % 2 == 0) std::ranges::reverse(order);
  std::vector<Sampler> samplers;
  for (const size_t i : order) {
    const Trial& trial = trials[i];
    samplers.push_back(scope == Scope::host          ? trial.host_sampler()
                       : scope == Scope::device_cold ? cold_sampler(device_, *trial.problem, *rates_.cold_flush())
                                                     : hot_sampler(device_, *trial.problem, launches));
  }
  TimingPolicy in_turn = policy(scope == Scope::host ? paired_host_rounds : paired_rounds, budget_s);
  if (scope == Scope::host) in_turn.warmup = 1;
  ClockLog clocks(device_);
  const std::vector<Measured> measured = measure_interleaved(samplers, in_turn, interrupted, [&] { clocks.read(); });
  if (interrupted()) return {};
  const auto times = [&](size_t i) -> const Series& {
    return measured[static_cast<size_t>(std::ranges::find(order, i) - order.begin())].series.front();
  };
  return {scope, measured.front().stop, times(0), times(1), times(2), clocks.json()};
}

}  // namespace attn
