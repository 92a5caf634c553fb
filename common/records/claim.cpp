#include "common/records/claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <stdexcept>

namespace attn {
namespace {

constexpr double clean_cv = 0.05;

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
  for (const auto& [key, group] : grouped(taking_part, claim.varies)) {
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
          evidence.correct &= result.status == "ok";  // a kernel may fail after it was timed
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
  switch (state) {
    case State::supported:
      return "supported";
    case State::refuted:
      return "refuted";
    case State::inconclusive:
      return "inconclusive";
  }
  throw std::logic_error("name(State): no such state");
}

double Comparison::aa_floor() const { return std::max(std::abs(aa.ci_lo - 1), std::abs(aa.ci_hi - 1)); }

Verdict judge(const Hypothesis& hypothesis, const Conclusion& conclusion) {
  const auto& [value, ci_lo, ci_hi] = conclusion.estimate;
  const double threshold = hypothesis.threshold;
  if (!conclusion.correct) return {State::inconclusive, "a result that it uses failed its check"};

  const std::string interval = fmt::format("{:.4g} [{:.4g}, {:.4g}]", value, ci_lo, ci_hi);
  const bool lo_holds = holds(ci_lo, hypothesis.op, threshold);
  if (!(ci_lo <= ci_hi) || lo_holds != holds(ci_hi, hypothesis.op, threshold)) {
    return {State::inconclusive, fmt::format("the interval of {} crosses {:.4g}", interval, threshold)};
  }
  // The distance to the threshold counts, not the distance to 1: a ratio of 1 soundly refutes "10 % slower". The floor
  // is relative to the time, so it grows with a threshold above 1.
  const double floor = conclusion.aa_floor * std::max(1.0, std::abs(threshold));
  if (std::abs(value - threshold) < floor) {
    return {State::inconclusive,
            fmt::format("{} is closer to {:.4g} than the noise floor of {:.2g}", interval, threshold, floor)};
  }
  return {lo_holds ? State::supported : State::refuted,
          fmt::format("{} {} {} {:.4g}", interval, lo_holds ? "is" : "is not", hypothesis.op, threshold)};
}

double confidence(const Verdict& verdict, const Conclusion& conclusion, bool replicated) {
  if (!conclusion.correct) return 0;
  if (verdict.state == State::inconclusive) return 0.5;
  if (!(conclusion.cv < clean_cv)) return 0.6;
  return replicated ? 0.95 : 0.8;
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

std::vector<Conclusion> conclude(const std::vector<Claim>& claims, const std::vector<Measurement>& results,
                                 const std::vector<Comparison>& comparisons) {
  std::vector<Conclusion> conclusions;
  for (const Claim& claim : claims) {
    const auto found = claim.compared ? gathered(claim, results, comparisons) : picked(claim, results);
    for (const Evidence& evidence : found) conclusions.push_back(conclude(claim, evidence));
  }
  return conclusions;
}

Conclusion conclude(const Claim& claim, const Evidence& evidence) {
  Conclusion conclusion;
  conclusion.hypothesis = claim.hypothesis.id;
  conclusion.title = claim.title;
  conclusion.title_unless_supported = claim.title_unless_supported;
  conclusion.content = claim.content;
  conclusion.advice = claim.advice;
  conclusion.correct = evidence.correct;
  for (const Measurement* result : evidence.results) {
    conclusion.measurements.push_back(result->id);
    if (evidence.comparisons.empty()) conclusion.cv = std::max(conclusion.cv, result->main_timing()->cv);
  }
  for (const Comparison* comparison : evidence.comparisons) {
    conclusion.cv = std::max(conclusion.cv, comparison->cv);
    conclusion.compare = *comparison;
  }
  if (claim.figure) {
    conclusion.estimate = claim.figure(evidence);
  } else if (conclusion.compare) {
    conclusion.estimate = conclusion.compare->ratio;
    conclusion.aa_floor = conclusion.compare->aa_floor();
  }
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
  const auto found = std::min_element(results.begin(), results.end(), faster);
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
  Results found;
  const std::string wanted = axis + "=" + value;
  std::copy_if(results.begin(), results.end(), std::back_inserter(found),
               [&](const Measurement* result) { return result->config.key({axis}) == wanted; });
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
