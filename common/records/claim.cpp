#include "common/records/claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>

namespace attn {
namespace {

bool holds(double value, const std::string& op, double threshold) {
  if (op == "<") return value < threshold;
  if (op == "<=") return value <= threshold;
  if (op == ">") return value > threshold;
  if (op == ">=") return value >= threshold;
  throw std::invalid_argument(fmt::format("'{}' is not allowed; one of <, <=, >, >=", op));
}

std::vector<Evidence> picked(const Claim& claim, const std::vector<Measurement>& results) {
  Results taking_part;
  for (const Measurement& result : results) {
    if (result.status == "ok" && result.main_timing() && (!claim.takes || claim.takes(result))) {
      taking_part.push_back(&result);
    }
  }
  std::vector<Evidence> found;
  for (const auto& [key, group] : group_results(taking_part, claim.varies)) {
    if (!claim.pick || group.size() < claim.at_least) continue;
    for (Results& pick : claim.pick(group)) {
      found.push_back({.results = std::move(pick), .among = group.size()});
    }
  }
  if (claim.longest.empty()) return found;
  const auto length = [&](const Evidence& evidence) { return evidence.results.front()->config.integer(claim.longest); };
  int64_t kept = 0;
  for (const Evidence& evidence : found) {
    if (length(evidence) <= claim.limit) kept = std::max(kept, length(evidence));
  }
  std::erase_if(found, [&](const Evidence& evidence) { return length(evidence) != kept; });
  return found;
}

std::vector<Evidence> gathered(const Claim& claim, const std::vector<Measurement>& results,
                               const std::vector<Comparison>& comparisons) {
  std::vector<Evidence> found;
  const auto add = [&](const std::vector<const Comparison*>& of_one) {
    Evidence evidence;
    evidence.comparisons = of_one;
    for (const Comparison* comparison : of_one) {
      for (const Case* config : {&comparison->baseline, &comparison->contender}) {
        const Measurement* timed = nullptr;
        for (const Measurement& result : results) {
          if (result.config != *config) continue;
          if (result.status == "ok") timed = &result;
          if (result.status == "ok") continue;  // a timed case may have a second record, of a later failure
          evidence.fault = result.status + ": " + result.reason;
        }
        if (!timed) return;
        evidence.results.push_back(timed);
      }
    }
    found.push_back(std::move(evidence));
  };
  if (claim.gather) {
    for (const auto& of_one : claim.gather(comparisons)) add(of_one);
  } else {
    for (const Comparison& comparison : comparisons) {
      if (comparison.hypothesis == claim.hypothesis.id) add({&comparison});
    }
  }
  return found;
}

}  // namespace

std::string_view name(State state) {
  constexpr std::string_view names[] = {"supported", "refuted", "inconclusive"};
  return names[static_cast<size_t>(state)];
}

Verdict judge(const Hypothesis& hypothesis, const Conclusion& conclusion) {
  const Pooled& estimate = conclusion.estimate;
  const double value = estimate.value, threshold = hypothesis.threshold;
  if (!conclusion.correct) {
    return {State::inconclusive, conclusion.fault.empty()
                                     ? "a result that it uses failed its check"
                                     : "a case that it uses has no sound figure, " + conclusion.fault};
  }
  if (conclusion.exact) {
    const bool held = holds(value, hypothesis.op, threshold);
    return {held ? State::supported : State::refuted,
            fmt::format("{:.4g}, exact, {} {} {:.4g}", value, held ? "is" : "is not", hypothesis.op, threshold)};
  }
  int rounds = 0;
  for (const Part& part : conclusion.parts) rounds += part.rounds;
  if (rounds < min_rounds_to_judge) {
    return {State::inconclusive,
            fmt::format("{} rounds are too few for a verdict; at least {} are needed", rounds, min_rounds_to_judge)};
  }

  if (conclusion.warm) {
    return {State::inconclusive,
            "memory limits a case that ran with warm caches, because no flush of the caches works here"};
  }
  const std::string interval =
      fmt::format("{:.4g}, next run [{:.4g}, {:.4g}],", value, estimate.next_lo, estimate.next_hi);
  const bool lo_holds = holds(estimate.next_lo, hypothesis.op, threshold);
  if (!(estimate.next_lo <= estimate.next_hi) || lo_holds != holds(estimate.next_hi, hypothesis.op, threshold)) {
    return {State::inconclusive, fmt::format("{} crosses {:.4g}", interval, threshold)};
  }
  // The noise floor is compared with the estimate's distance from the threshold, not from 1. For example, a ratio of 1
  // can refute the claim "at least 10 % slower", whose threshold is 1.1.
  const double distance = conclusion.relative ? std::abs(std::log(value / threshold)) : std::abs(value - threshold);
  if (distance < conclusion.floor) {
    return {State::inconclusive, fmt::format("{} is closer to {:.4g} than the noise floor of {:.2g}", interval,
                                             threshold, conclusion.floor)};
  }
  return {lo_holds ? State::supported : State::refuted,
          fmt::format("{} {} {} {:.4g}", interval, lo_holds ? "is" : "is not", hypothesis.op, threshold)};
}

double wrong(const Hypothesis& hypothesis, const Conclusion& conclusion) {
  if (!conclusion.correct) return 1;
  return conclusion.exact ? 0 : 1 - same_side(conclusion.estimate, hypothesis.threshold, conclusion.relative);
}

bool at_power_limit(const Json& clocks) {
  const Json reasons = clocks.is_object() ? clocks.value("throttle_reasons", Json::array()) : Json::array();
  return std::ranges::any_of(reasons, [](const Json& reason) { return reason == "software power cap"; });
}

std::vector<Hypothesis> hypotheses(const std::vector<Claim>& claims) {
  std::vector<Hypothesis> all;
  for (const Claim& claim : claims) all.push_back(claim.hypothesis);
  return all;
}

std::vector<Duel> duels(const std::vector<Claim>& claims, const std::vector<Measurement>& results) {
  std::vector<Duel> wanted;
  for (const Claim& claim : claims) {
    if (!claim.compared) continue;
    for (const Evidence& evidence : picked(claim, results)) {
      wanted.push_back({claim.hypothesis.id, evidence.results.at(0)->config, evidence.results.at(1)->config});
    }
  }
  return wanted;
}

std::vector<Case> cases_of_claims(const std::vector<Claim>& claims, const std::vector<Measurement>& results) {
  std::vector<Case> cases;
  for (const Claim& claim : claims) {
    if (claim.compared || claim.exact || !claim.measured_again) continue;
    for (const Evidence& evidence : picked(claim, results)) {
      for (const Measurement* result : evidence.results) {
        if (std::find(cases.begin(), cases.end(), result->config) == cases.end()) cases.push_back(result->config);
      }
    }
  }
  return cases;
}

std::vector<Conclusion> conclude(const std::vector<Claim>& claims, const std::vector<Measurement>& results,
                                 const std::vector<Comparison>& comparisons, const Processes& processes) {
  std::vector<Conclusion> conclusions;
  for (const Claim& claim : claims) {
    const auto found = claim.compared ? gathered(claim, results, comparisons) : picked(claim, results);
    for (const Evidence& evidence : found) conclusions.push_back(conclude(claim, evidence, processes));
  }
  return conclusions;
}

namespace {

Estimate figure_of(const Claim& claim, const Evidence& evidence) {
  if (claim.figure) return claim.figure(evidence);
  return evidence.comparisons.empty() ? Estimate{} : evidence.comparisons.back()->ratio;
}

/// Returns `evidence` with the results of each process that measured all of it; `evidence` itself if there is no such
/// process, or if Claim::measured_again is false.
std::vector<Evidence> by_process(const Claim& claim, const Evidence& evidence, const Processes& processes) {
  std::vector<Evidence> parts;
  if (!claim.measured_again) return {evidence};
  if (!evidence.comparisons.empty()) {
    for (const Comparison& first : evidence.comparisons.front()->parts) {
      Evidence part = evidence;
      bool whole = true;
      for (const Comparison*& comparison : part.comparisons) {
        const auto same = std::ranges::find(comparison->parts, first.process, &Comparison::process);
        whole &= same != comparison->parts.end();
        if (whole) comparison = &*same;
      }
      if (whole) parts.push_back(std::move(part));
    }
  } else {
    for (const std::vector<Measurement>& results : processes.results) {
      Evidence part = evidence;
      bool whole = true;
      for (const Measurement*& result : part.results) {
        const auto again = std::ranges::find_if(results, [&](const Measurement& other) {
          return other.config == result->config && other.main_timing() && (!claim.takes || claim.takes(other));
        });
        whole &= again != results.end();
        if (whole) result = &*again;
      }
      if (whole) parts.push_back(std::move(part));
    }
  }
  return parts.empty() ? std::vector{evidence} : parts;
}

int rounds_of(const Evidence& evidence) {
  std::vector<int> rounds;
  for (const Comparison* comparison : evidence.comparisons) {
    for (const Timing& time : comparison->time) rounds.push_back(time.rounds);
  }
  if (evidence.comparisons.empty()) {
    for (const Measurement* result : evidence.results) rounds.push_back(result->main_timing()->rounds);
  }
  return rounds.empty() ? 0 : std::ranges::min(rounds);
}

/// The figure that would result if the ratio of each comparison, and the contender's time, were multiplied by
/// exp(shift(comparison)).
double shifted_figure(const Claim& claim, const Evidence& evidence,
                      const std::function<double(const Comparison&)>& shift) {
  std::vector<Comparison> comparisons;
  for (const Comparison* comparison : evidence.comparisons) {
    Comparison& moved = comparisons.emplace_back(*comparison);
    const double factor = std::exp(shift(*comparison));
    for (double* value : {&moved.ratio.value, &moved.ratio.ci_lo, &moved.ratio.ci_hi}) *value *= factor;
    if (moved.time.empty()) continue;
    for (double* value : {&moved.time.back().median_s, &moved.time.back().ci_lo_s, &moved.time.back().ci_hi_s})
      *value *= factor;
  }
  Evidence moved = evidence;
  for (size_t i = 0; i < comparisons.size(); ++i) moved.comparisons[i] = &comparisons[i];
  return figure_of(claim, moved).value;
}

/// Sets the members of `conclusion` from `parts` to `floor`.
void estimate(const Claim& claim, const Evidence& evidence, const std::vector<Evidence>& parts,
              const Processes& processes, Conclusion& conclusion) {
  const bool compared = !evidence.comparisons.empty();
  conclusion.exact = claim.exact;
  const FigureKind kind = kind_of(compared, claim.hypothesis.metric);
  conclusion.prior = processes.prior(claim.hypothesis.id, kind);
  const bool of_ratios = compared && claim.figure && kind != FigureKind::absolute;
  conclusion.relative = claim.hypothesis.threshold > 0 && !of_ratios;
  double largest = std::abs(claim.hypothesis.threshold);
  int next_process = 1;
  for (const Evidence& part : parts) {
    const Estimate figure = figure_of(claim, part);
    conclusion.parts.push_back({.process = compared ? part.comparisons.front()->process : next_process++,
                                .value = figure.value,
                                .error = standard_error(figure.ci_lo, figure.ci_hi),
                                .rounds = rounds_of(part)});
    conclusion.relative &= figure.value > 0;
    largest = std::max(largest, std::abs(figure.value));
  }
  // With comparisons, `unit` is the change of the figure (of its logarithm if it is relative) per change of the
  // logarithms of its ratios. Otherwise, and for an absolute figure such as a time, the error is taken as proportional
  // to the figure.
  double unit = largest;
  if (compared) {
    constexpr double step = 1e-3;
    const double value = figure_of(claim, evidence).value;
    const auto change = [&](const std::function<double(const Comparison&)>& shift) {
      const double moved = shifted_figure(claim, evidence, shift);
      return conclusion.relative ? std::abs(std::log(moved / value)) : std::abs(moved - value);
    };
    // A figure that changes in jumps may not change at all for so small a `step`. Then `unit` stays `largest`.
    if (const double slope = change([](const Comparison&) { return step; }) / step;
        slope > 0 && kind != FigureKind::absolute)
      unit = slope;
    conclusion.floor = std::max(change([](const Comparison& pair) { return pair.aa_floor(); }),
                                change([](const Comparison& pair) { return -pair.aa_floor(); }));
  }
  conclusion.unit = unit;
  conclusion.estimate = pool({&conclusion.parts, 1}, conclusion.prior, conclusion.relative, unit);
  if (!conclusion.exact) return;
  Pooled& exact = conclusion.estimate;
  exact.value = exact.ci_lo = exact.ci_hi = exact.next_lo = exact.next_hi = conclusion.parts.front().value;
}

bool throttled_alike(const Results& results) {
  const auto reasons = [](const Measurement& result) {
    return result.clocks.is_object() ? result.clocks.value("throttle_reasons", Json::array()) : Json::array();
  };
  return std::ranges::all_of(results, [&](const Measurement* result) {
    return reasons(*result).empty() == reasons(*results.front()).empty();
  });
}

/// Whether a memory-bound case was timed with warm caches.
bool ran_warm(const Evidence& evidence) {
  for (size_t i = 0; i < evidence.results.size(); ++i) {
    const Measurement& result = *evidence.results[i];
    if (!result.work || result.work->bound != Bound::memory) continue;
    // A comparison has two results, so result i belongs to comparison i / 2.
    const bool compared = i / 2 < evidence.comparisons.size();
    const std::vector<Timing> times = compared ? evidence.comparisons[i / 2]->time : std::vector{*result.main_timing()};
    if (!times.empty() && times.front().scope == Scope::device_hot) return true;
  }
  return false;
}

}  // namespace

Conclusion conclude(const Claim& claim, const Evidence& sweep, const Processes& processes) {
  Conclusion conclusion;
  conclusion.hypothesis = claim.hypothesis.id;
  conclusion.title = claim.title;
  conclusion.title_unless_supported = claim.title_unless_supported;
  conclusion.content = claim.content;
  conclusion.correct = sweep.fault.empty();
  conclusion.fault = sweep.fault;
  const bool has_figure = claim.figure || !sweep.comparisons.empty();
  const std::vector<Evidence> parts = by_process(claim, sweep, processes);
  if (has_figure) estimate(claim, sweep, parts, processes, conclusion);
  // Without comparisons, the texts quote the process with the median figure.
  Evidence evidence = sweep;
  if (has_figure && sweep.comparisons.empty()) {
    std::vector<size_t> order(parts.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) { return conclusion.parts[i].value; });
    evidence = parts[order[(order.size() - 1) / 2]];
  }
  for (const Measurement* result : evidence.results) {
    conclusion.measurements.push_back(result->id);
    if (evidence.comparisons.empty()) conclusion.cv = std::max(conclusion.cv, result->main_timing()->cv);
  }
  for (const Comparison* comparison : evidence.comparisons) {
    conclusion.cv = std::max(conclusion.cv, comparison->cv);
    conclusion.compare = *comparison;
  }
  if (!evidence.results.empty()) conclusion.unlike_throttling = !throttled_alike(evidence.results);
  conclusion.power_capped =
      std::ranges::any_of(evidence.results, at_power_limit, [](const auto* result) { return result->clocks; }) ||
      std::ranges::any_of(evidence.comparisons, at_power_limit, [](const auto* pair) { return pair->clocks; });
  conclusion.warm = std::ranges::any_of(parts, ran_warm);
  if (!claim.selection.empty()) conclusion.selection = evidence.results.front()->config.key(claim.selection);
  if (const size_t n = evidence.results.size(); n == 1) {
    conclusion.values = evidence.results.front()->config.json();
  } else if (n > 1) {
    conclusion.values = {{"baseline", evidence.results[n - 2]->config.json()},
                         {"contender", evidence.results[n - 1]->config.json()}};
  }
  if (claim.subject) conclusion.subject = claim.subject(evidence);
  if (claim.tags) conclusion.tags = claim.tags(evidence);
  if (claim.complete) claim.complete(conclusion, evidence);
  return conclusion;
}

double seconds(const Measurement& result) { return result.main_timing()->median_s; }

bool faster(const Measurement* a, const Measurement* b) { return seconds(*a) < seconds(*b); }

const Measurement* fastest(const Results& results) {
  const auto found = std::ranges::min_element(results, faster);
  return found == results.end() ? nullptr : *found;
}

const Measurement* largest(const Results& results, const std::string& axis) {
  const auto found = std::max_element(results.begin(), results.end(), [&](const auto* a, const auto* b) {
    const int64_t x = a->config.integer(axis), y = b->config.integer(axis);
    return x < y || (x == y && faster(b, a));
  });
  return found == results.end() ? nullptr : *found;
}

Results where(const Results& results, const std::string& axis, const std::string& value) {
  Results found = results;
  std::erase_if(found, [&](const Measurement* result) { return result->config.value_text(axis) != value; });
  return found;
}

std::vector<Results> pair(const Results& baselines, const Results& contenders) {
  if (baselines.empty() || contenders.empty()) return {};
  return {{fastest(baselines), fastest(contenders)}};
}

std::vector<Results> each(const Results& group) {
  std::vector<Results> picks;
  for (const Measurement* result : group) picks.push_back({result});
  return picks;
}

Pick steps(const std::string& axis, const std::vector<std::pair<std::string, std::string>>& values) {
  return [=](const Results& group) {
    std::vector<Results> picks;
    for (const auto& [from, to] : values) {
      for (Results& found : pair(where(group, axis, from), where(group, axis, to))) picks.push_back(std::move(found));
    }
    return picks;
  };
}

Pick against(const std::string& axis, const std::string& value) {
  return [=](const Results& group) {
    const Results baselines = where(group, axis, value);
    std::vector<Results> picks;
    for (const Measurement* result : group) {
      const bool other = std::find(baselines.begin(), baselines.end(), result) == baselines.end();
      if (other && !baselines.empty()) picks.push_back({fastest(baselines), result});
    }
    return picks;
  };
}

Pick fastest_at_each(const std::string& axis, size_t at_least_values) {
  return [=](const Results& group) -> std::vector<Results> {
    std::map<int64_t, Results> by_value;
    for (const Measurement* result : group) by_value[result->config.integer(axis)].push_back(result);
    if (by_value.size() < at_least_values) return {};
    Results found;
    for (const auto& [value, results] : by_value) found.push_back(fastest(results));
    return {found};
  };
}

Estimate ratio_of_medians(const Evidence& evidence) {
  const Measurement &first = *evidence.results.at(0), &second = *evidence.results.at(1);
  if (&first == &second) return {1, 1, 1};
  const Estimate a = first.main_timing()->median(), b = second.main_timing()->median();
  return {b.value / a.value, b.ci_lo / a.ci_hi, b.ci_hi / a.ci_lo};
}

Figure exponent_over(const std::string& axis) {
  return [=](const Evidence& evidence) {
    std::vector<ScalingPoint> points;
    for (const Measurement* result : evidence.results) {
      points.push_back({static_cast<double>(result->config.integer(axis)), result->main_timing()->median()});
    }
    return scaling_exponent(points);
  };
}

std::function<std::string(const Evidence&)> subject_without(const std::set<std::string>& left_out,
                                                            const std::vector<std::string>& first) {
  return [=](const Evidence& evidence) {
    const Case& config = evidence.results.front()->config;
    return (first.empty() ? "" : config.key(first) + " ") + config.key_without(left_out);
  };
}

}  // namespace attn
