#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

void Experiment::State::compare(const std::vector<Duel>& duels) {
  compare_each(replays_finding() ? replayed_duels() : duels, budget_left());
}

void Experiment::State::compare_each(const std::vector<Duel>& asked, double budget_s) {
  const auto find_before = [&](const Duel& duel) {
    return std::find_if(compared_before.begin(), compared_before.end(),
                        [&](const auto& known) { return same_pair(duel, known); });
  };
  std::vector<Duel> wanted;  // each pair once, also where several hypotheses ask for it
  for (const Duel& duel : asked) {
    const bool taken =
        std::any_of(wanted.begin(), wanted.end(), [&](const Duel& other) { return same_pair(duel, other); });
    if (!taken && was_measured(duel.baseline) && was_measured(duel.contender)) wanted.push_back(duel);
  }
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
    if (!comparison) continue;
    for (const Duel& duel : asked) {
      if (!same_pair(duel, pair)) continue;
      comparisons.push_back(*comparison);
      comparisons.back().hypothesis = duel.hypothesis;
    }
  }
  if (left > 0) progress.note(fmt::format("{} comparisons are left out: {}", left, budget_spent));
}

std::optional<Comparison> Experiment::State::compare_now(const Duel& duel, double budget_s) {
  const std::string pair = label(duel.contender) + " against " + label(duel.baseline);
  progress.begin(pair);
  const Stopwatch stopwatch;
  const auto comparison = compare(duel, budget_s);
  measured_s += stopwatch.seconds();
  if (interrupted()) throw Interrupted{};
  progress.finish(comparison
                      ? fmt::format("{}: {:.4f} [{:.4f}, {:.4f}], A/A floor {:.4f}", pair, comparison->ratio.value,
                                    comparison->ratio.ci_lo, comparison->ratio.ci_hi, comparison->aa_floor())
                      : pair + ": failed");
  return comparison;
}

std::optional<Comparison> Experiment::State::compare(const Duel& duel, double budget_s) {
  std::vector<Trial> trials;
  for (const Case& config : {duel.baseline, duel.contender, duel.baseline}) trials.push_back(new_trial(config));
  const auto all_ok = [&] { return std::all_of(trials.begin(), trials.end(), is_ok); };
  for (Trial& trial : trials) {
    if (all_ok()) guarded(trial.record, [&] { make(trial); });
  }
  std::vector<Measured> measured;
  Scope scope = Scope::device_hot;
  if (all_ok()) {
    // A failure while the trials run in turn belongs to no single trial. The contender's record takes it.
    guarded(trials[1].record, [&] {
      const auto any = [&](const auto& is) { return std::any_of(trials.begin(), trials.end(), is); };
      if (any([](const Trial& trial) { return trial.host != nullptr; })) scope = Scope::host;
      if (any([&](const Trial& trial) { return judged_cold(trial); })) scope = Scope::device_cold;
      // All samplers take the same number of launches per sample, so that only the cases differ.
      int launches = 1;
      for (const Trial& trial : trials) launches = std::max(launches, launches_per_sample(trial));
      std::vector<Sampler> samplers;
      for (const Trial& trial : trials) {
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
      measured = measure_interleaved(samplers, in_turn, interrupted);
    });
  }
  if (interrupted()) return std::nullopt;
  for (Trial& trial : trials) {
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

  const auto times = [&](int i) -> const Series& { return measured[i].series.front(); };
  Comparison comparison;
  comparison.baseline = duel.baseline;
  comparison.contender = duel.contender;
  comparison.ratio = ratio(times(0), times(1), options.seed);
  comparison.aa = ratio(times(0), times(2), options.seed);
  for (const int i : {0, 1}) {
    comparison.time.push_back(summarize(times(i), scope, measured[i].stop, options.seed));
    comparison.cv = std::max(comparison.cv, comparison.time.back().cv);
  }
  return comparison;
}

}  // namespace attn
