#include "findings/kb/first_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace attn::kb {
namespace {

constexpr double clean_cv = 0.05;

bool fulfils(double value, const std::string& op, double threshold) {
  if (op == "<") return value < threshold;
  if (op == "<=") return value <= threshold;
  if (op == ">") return value > threshold;
  if (op == ">=") return value >= threshold;
  throw std::invalid_argument(fmt::format("operator '{}' is not allowed; allowed are <, <=, > and >=", op));
}

}  // namespace

Verdict first_judge(const Hypothesis& hypothesis, const FirstFigures& figures) {
  const auto& [value, ci_lo, ci_hi] = figures.estimate;
  const double threshold = hypothesis.threshold;
  if (!figures.correct) return {State::inconclusive, "a result that it uses failed its check"};

  const std::string interval = fmt::format("{:.4g} [{:.4g}, {:.4g}]", value, ci_lo, ci_hi);
  const bool lo_holds = fulfils(ci_lo, hypothesis.op, threshold);
  // `!(ci_lo <= ci_hi)` also holds for NaN.
  if (!(ci_lo <= ci_hi) || lo_holds != fulfils(ci_hi, hypothesis.op, threshold)) {
    return {State::inconclusive, fmt::format("the interval of {} crosses {:.4g}", interval, threshold)};
  }
  // aa_floor is relative to a ratio. The figure may be a difference of two ratios near 1: its threshold may be near 0,
  // but its noise is not smaller.
  const double floor = figures.aa_floor * std::max(1.0, std::abs(threshold));
  if (std::abs(value - threshold) < floor) {
    return {State::inconclusive,
            fmt::format("{} is closer to {:.4g} than the noise floor of {:.2g}", interval, threshold, floor)};
  }
  return {lo_holds ? State::supported : State::refuted,
          fmt::format("{} {} {} {:.4g}", interval, lo_holds ? "is" : "is not", hypothesis.op, threshold)};
}

double first_confidence(const Verdict& verdict, const FirstFigures& figures, bool replicated) {
  if (!figures.correct) return 0;
  if (verdict.state == State::inconclusive) return 0.5;
  if (!(figures.cv < clean_cv)) return 0.6;
  return replicated ? 0.95 : 0.8;
}

std::string first_claim_key(const std::string& experiment, const std::string& hypothesis, const std::string& device,
                            const std::string& subject) {
  return fmt::format("{}/{}/{}{}{}", experiment, hypothesis, device, subject.empty() ? "" : "/", subject);
}

}  // namespace attn::kb
