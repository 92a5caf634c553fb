// Timings, hypotheses and conclusions for the tests of records.
#pragma once

#include <string>

#include "common/records/claim.h"

namespace attn {

inline Timing timing(Scope scope, double median_s) {
  return {scope, 50, 10, median_s, 0.99 * median_s, 1.01 * median_s, 0.02, 0.9 * median_s, "ci"};
}

inline Hypothesis hypothesis(const std::string& op, double threshold) {
  return {.id = "bc80", .text = "t", .metric = "m", .op = op, .threshold = threshold, .origin = "o"};
}

/// A conclusion that expects the next run's figure in the interval `next`.
inline Conclusion conclusion(Estimate next, double floor = 0, double cv = 0.01) {
  Conclusion c;
  c.hypothesis = "bc80";
  c.estimate = {.value = next.value,
                .ci_lo = next.ci_lo,
                .ci_hi = next.ci_hi,
                .next_lo = next.ci_lo,
                .next_hi = next.ci_hi,
                .processes = 1,
                .sessions = 1,
                .freedom = 30};
  c.parts = {{.process = 1, .value = next.value, .error = (next.ci_hi - next.ci_lo) / 4, .rounds = 10}};
  c.floor = floor;
  c.cv = cv;
  return c;
}

}  // namespace attn
