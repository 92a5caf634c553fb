#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "common/base/text_table.h"
#include "common/experiment/clock_log.h"
#include "common/experiment/sampling.h"
#include "common/experiment/state.h"

namespace attn {
namespace {

constexpr Rounds paired_rounds{15, 50};
constexpr Rounds paired_host_rounds{6, 10};  // fewer, because the host's work may take seconds

bool is_ok(const Trial& trial) { return trial.record.status == "ok"; }

}  // namespace

bool Experiment::State::was_measured(const Case& config) const {
  return std::any_of(results.begin(), results.end(), [&](const Measurement& result) {
    return result.config == config && result.status == "ok" && result.main_timing();
  });
}

std::vector<Duel> Experiment::State::replayed_duels() const {
  const Json& data = replayed.at("data");
  const Json& compare = data.at("compare");
  if (compare.is_null()) return {};
  return {{data.at("hypothesis").at("id"), Case::from_json(compare.at("baseline")),
           Case::from_json(compare.at("contender"))}};
}

std::vector<Duel> Experiment::State::pairs_of(const std::vector<Duel>& asked) const {
  std::vector<Duel> wanted;
  for (const Duel& duel : asked) {
    const bool taken =
        std::any_of(wanted.begin(), wanted.end(), [&](const Duel& other) { return same_pair(duel, other); });
    if (!taken && was_measured(duel.baseline) && was_measured(duel.contender)) wanted.push_back(duel);
  }
  return wanted;
}

void Experiment::State::keep_comparison(const Comparison& comparison, const std::vector<Duel>& asked) {
  for (const Duel& duel : asked) {
    if (!same_pair(duel, comparison)) continue;
    std::erase_if(comparisons, [&](const Comparison& known) {
      return same_pair(known, duel) && known.hypothesis == duel.hypothesis;
    });
    comparisons.push_back(comparison);
    comparisons.back().hypothesis = duel.hypothesis;
  }
}

void Experiment::State::compare_each(const std::vector<Duel>& asked, double budget_s) {
  const auto find_before = [&](const Duel& duel) {
    return std::find_if(compared_before.begin(), compared_before.end(),
                        [&](const auto& known) { return same_pair(duel, known); });
  };
  std::vector<Duel> wanted = pairs_of(asked);
  std::erase_if(wanted,
                [&](const Duel& duel) { return find_before(duel) == compared_before.end() && is_judged(duel, asked); });
  auto left = std::count_if(wanted.begin(), wanted.end(),
                            [&](const Duel& duel) { return find_before(duel) == compared_before.end(); });
  progress.add(left);
  const double end_s = measured_s + budget_s;
  for (const Duel& pair : wanted) {
    if (interrupted()) throw Interrupted{};
    std::optional<Comparison> comparison;
    if (const auto known = find_before(pair); known != compared_before.end()) {
      comparison = *known;
    } else if (measured_s < end_s) {
      comparison = compare_now(pair, (end_s - measured_s) / static_cast<double>(left));
      --left;
    }
    if (comparison) keep_comparison(*comparison, asked);
  }
  if (left > 0)
    progress.note(fmt::format("left out: {}: {}", counted(static_cast<size_t>(left), "comparison"), budget_spent));
}

std::optional<Comparison> Experiment::State::compare_now(const Duel& duel, double budget_s) {
  const std::string pair = label(duel.contender) + " against " + label(duel.baseline);
  progress.begin(pair);
  const Stopwatch stopwatch;
  const std::optional<PairSamples> samples = sample_pair(duel, budget_s);
  measured_s += stopwatch.seconds();
  if (interrupted()) throw Interrupted{};
  std::optional<Comparison> comparison;
  if (samples) {
    comparison = compared(duel.baseline, duel.contender, *samples, options.seed);
    keep_samples(1, {{"baseline", duel.baseline.json()}, {"contender", duel.contender.json()}}, to_json(*samples));
  }
  progress.finish(comparison ? describe(*comparison) : pair + ": failed");
  return comparison;
}

std::string Experiment::State::describe(const Comparison& comparison) const {
  return fmt::format(
      "{} against {}: {:.4f} of its time [{:.4f}, {:.4f}]; the second against itself differs by up to {:.2g} % (A/A "
      "floor)",
      label(comparison.contender), label(comparison.baseline), comparison.ratio.value, comparison.ratio.ci_lo,
      comparison.ratio.ci_hi, 100 * std::expm1(comparison.aa_floor()));
}

std::optional<PairSamples> Experiment::State::sample_pair(const Duel& duel, double budget_s) {
  std::vector<Trial> trials;
  for (const Case& config : {duel.baseline, duel.contender, duel.baseline}) trials.push_back(new_trial(config));
  note_cases({duel.baseline, duel.contender, duel.baseline});
  const auto at = [&](const Trial& trial) { at_case(static_cast<int>(&trial - trials.data())); };
  const auto all_ok = [&] { return std::all_of(trials.begin(), trials.end(), is_ok); };
  for (Trial& trial : trials) {
    at(trial);
    if (all_ok()) guarded(trial.record, [&] { make(trial, &trial == &trials.back() ? make_apart : spec.make); });
  }
  at(trials[1]);
  std::vector<size_t> order = {0, 1, 2};
  std::vector<Measured> measured;
  ClockLog clocks(*device);
  Scope scope = Scope::device_hot;
  if (all_ok()) {
    // While the trials take turns, a failure cannot be blamed on one of them: the contender's record gets the failure.
    guarded(trials[1].record, [&] {
      const auto any = [&](const auto& is) { return std::any_of(trials.begin(), trials.end(), is); };
      if (any([](const Trial& trial) { return trial.host != nullptr; })) scope = Scope::host;
      if (any([&](const Trial& trial) { return judged_cold(trial); })) scope = Scope::device_cold;
      // All hot samplers take the same number of launches per sample, so that only the cases differ.
      int launches = 1;
      for (const Trial& trial : trials) launches = std::max(launches, launches_per_sample(trial));
      std::vector<Sampler> samplers;
      // In every second process A' begins: the error that a drift leaves in A B A' has the opposite sign in A' B A.
      if (options.part_number % 2 == 0) std::reverse(order.begin(), order.end());
      for (const size_t i : order) {
        const Trial& trial = trials[i];
        if (scope == Scope::host) {
          samplers.emplace_back([&trial]() -> std::vector<double> { return {trial.host->sample()}; });
        } else if (scope == Scope::device_cold) {
          samplers.push_back(cold_sampler(*device, *trial.problem, *cold_flush()));
        } else {
          samplers.push_back(hot_sampler(*device, *trial.problem, launches));
        }
      }
      TimingPolicy in_turn = policy(scope == Scope::host ? paired_host_rounds : paired_rounds, budget_s);
      if (scope == Scope::host) in_turn.warmup = 1;
      measured = measure_interleaved(samplers, in_turn, interrupted, [&] { clocks.read(); });
    });
  }
  if (interrupted()) return std::nullopt;
  // A' differs from A only in its tensors, and is not checked.
  for (Trial& trial : std::span(trials).first(2)) {
    at(trial);
    if (all_ok()) guarded(trial.record, [&] { check_again(trial); });
  }
  if (!all_ok()) {
    for (Trial& trial : trials) {
      if (is_ok(trial)) continue;
      trial.record.reason += " (in a comparison)";
      progress.add(1);
      store(std::move(trial.record));
    }
    return std::nullopt;
  }

  const auto times = [&](size_t i) -> const Series& {
    return measured[static_cast<size_t>(std::ranges::find(order, i) - order.begin())].series.front();
  };
  return PairSamples{scope, measured.front().stop, times(0), times(1), times(2), clocks.json()};
}

}  // namespace attn
