#include "common/experiment/comparisons.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace attn {
namespace {

std::string describe(const Comparison& comparison, const std::vector<std::string>& axes) {
  return fmt::format(
      "{} against {}: {:.4f} of its time [{:.4f}, {:.4f}]; the second against itself differs by up to {:.2g} % (A/A "
      "floor)",
      label(comparison.contender, axes), label(comparison.baseline, axes), comparison.ratio.value,
      comparison.ratio.ci_lo, comparison.ratio.ci_hi, 100 * std::expm1(comparison.aa_floor()));
}

}  // namespace

Comparisons::Comparisons(const Given& given, const Selection& selection, Recorder& recorder, Tasks& tasks)
    : given_(given), selection_(selection), recorder_(recorder), tasks_(tasks) {
  processes_.prior = [device = device_name(given.info), experiment = given.spec.name](const std::string& hypothesis,
                                                                                      FigureKind kind) {
    return spread_of(device, experiment, hypothesis, kind);
  };
}

std::vector<Duel> Comparisons::left_of(const std::vector<Duel>& asked, bool of_processes) {
  std::vector<Duel> left;
  for (const Duel& duel : asked) {
    const bool taken = std::ranges::any_of(left, [&](const Duel& other) { return same_pair(duel, other); });
    if (taken || !recorder_.was_measured(duel.baseline) || !recorder_.was_measured(duel.contender)) continue;
    const Comparison* const before = selection_.compared_before(duel);
    if (before && (!of_processes || !before->parts.empty())) {
      keep(*before, asked);
    } else if (!selection_.is_judged(duel, asked)) {
      left.push_back(duel);
    }
  }
  return left;
}

void Comparisons::keep(const Comparison& comparison, const std::vector<Duel>& asked) {
  for (const Duel& duel : asked) {
    if (!same_pair(duel, comparison)) continue;
    std::erase_if(comparisons_, [&](const Comparison& known) {
      return same_pair(known, duel) && known.hypothesis == duel.hypothesis;
    });
    comparisons_.push_back(comparison);
    comparisons_.back().hypothesis = duel.hypothesis;
    pool_parts(comparisons_.back(), processes_.prior(duel.hypothesis, FigureKind::ratio));
  }
}

void Comparisons::keep_new(const Comparison& comparison, const std::vector<Duel>& asked) {
  if (!given_.options.quiet) recorder_.progress().note(describe(comparison, recorder_.label_axes()));
  keep(comparison, asked);
}

void Comparisons::compare(const std::vector<Duel>& asked, double budget_s) {
  Task task{.duels = left_of(asked, false), .budget_s = budget_s};
  if (task.empty()) return;
  for (const auto& [duel, samples] : tasks_.run(std::move(task)).pairs) {
    keep_new(compared(duel.baseline, duel.contender, samples, given_.options.seed), asked);
  }
}

void Comparisons::repeat(const std::vector<Claim>& claims, const std::vector<Duel>& asked) {
  std::vector<Duel> duels = selection_.replays_finding() ? selection_.replayed_duels() : asked;
  for (const Comparison& comparison : comparisons_) {
    duels.push_back({comparison.hypothesis, comparison.baseline, comparison.contender});
  }
  const int count = given_.options.process_count(given_.info);
  if (count == 1) {
    compare(duels, tasks_.budget_left());
  } else {
    repeat_in(count, selection_.cases_to_repeat(claims, recorder_.results()), duels);
  }
  const bool measured_nothing = tasks_.measured_s() == 0 && recorder_.only_taken_over() && !recorder_.results().empty();
  if (given_.options.resume && !given_.options.quiet && measured_nothing) {
    recorder_.tell(
        fmt::format("nothing is left to measure: the run {} is complete", recorder_.run().at("id").get<std::string>()));
  }
}

void Comparisons::repeat_in(int count, const std::vector<Case>& cases, const std::vector<Duel>& asked) {
  const std::vector<Duel> pairs = left_of(asked, true);
  std::vector<Tasks::Found> parts;
  for (int part = 1; part <= count && tasks_.budget_left() > 0; ++part) {
    Task task{.groups = group(cases, given_.spec.compared_axes), .duels = pairs, .part = part, .parts = count};
    std::erase_if(task.duels, [&](const Duel& duel) {
      return !recorder_.was_measured(duel.baseline) || !recorder_.was_measured(duel.contender);
    });
    if (task.empty()) break;
    task.budget_s = tasks_.budget_left() / (count - part + 1);
    task.groups_s = pairs.empty() ? task.budget_s : task.budget_s - compare_share * task.budget_s;
    parts.push_back(tasks_.repeat(std::move(task)));
  }
  pool_pairs(parts, pairs, asked);
  for (Tasks::Found& part : parts) {
    // A part's measurement gets the id of the sweep's record of the same case, because findings name this record.
    for (Measurement& measurement : part.measurements) {
      const auto recorded = std::ranges::find(recorder_.results(), measurement.config, &Measurement::config);
      if (recorded != recorder_.results().end()) measurement.id = recorded->id;
    }
    processes_.results.push_back(std::move(part.measurements));
  }
}

void Comparisons::pool_pairs(const std::vector<Tasks::Found>& parts, const std::vector<Duel>& pairs,
                             const std::vector<Duel>& asked) {
  for (const Duel& pair : pairs) {
    std::vector<Comparison> of_processes;
    std::vector<PairSamples> samples;
    for (const Tasks::Found& part : parts) {
      const auto measured =
          std::ranges::find_if(part.pairs, [&](const auto& other) { return same_pair(other.first, pair); });
      if (measured == part.pairs.end()) continue;
      samples.push_back(measured->second);
      of_processes.push_back(compared(pair.baseline, pair.contender, samples.back(), given_.options.seed));
      of_processes.back().process = part.part;
    }
    if (of_processes.empty() || !recorder_.was_measured(pair.baseline) || !recorder_.was_measured(pair.contender)) {
      continue;
    }
    const Spread prior = processes_.prior(pair.hypothesis, FigureKind::ratio);
    keep_new(compared(of_processes, samples, prior, given_.options.seed), asked);
  }
}

}  // namespace attn
