#include "common/records/claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
  if (!conclusion.correct) return {State::inconclusive, "a result behind it failed its check"};

  const std::string interval = fmt::format("{:.4g} [{:.4g}, {:.4g}]", value, ci_lo, ci_hi);
  const bool lo_holds = holds(ci_lo, hypothesis.op, threshold);
  if (!(ci_lo <= ci_hi) || lo_holds != holds(ci_hi, hypothesis.op, threshold)) {
    return {State::inconclusive, fmt::format("the interval of {} crosses {:.4g}", interval, threshold)};
  }
  // What matters is the distance to the threshold, not to 1: no effect at all soundly refutes "10 % slower". The floor
  // is relative to the time, and so grows with a threshold above 1.
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

}  // namespace attn
