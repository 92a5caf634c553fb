/// Timings, hypotheses and conclusions for the tests of records.
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

inline Conclusion conclusion(Estimate estimate, double aa_floor = 0, double cv = 0.01) {
  Conclusion c;
  c.hypothesis = "bc80";
  c.estimate = estimate;
  c.aa_floor = aa_floor;
  c.cv = cv;
  return c;
}

}  // namespace attn
