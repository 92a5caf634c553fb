/// What the tests of claims and findings judge.
#pragma once

#include <string>

#include "common/records/claim.h"

namespace attn {

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
