// Figures with the verdict that follows from them, for the tests of the rules by which findings are judged.
#pragma once

#include <cmath>
#include <vector>

#include "common/records/claim.h"

namespace attn {

struct VerdictCase {
  const char* op;
  double threshold;
  Estimate estimate;
  double floor;
  State state;
};

inline std::vector<VerdictCase> verdict_cases() {
  constexpr State yes = State::supported, no = State::refuted, open = State::inconclusive;
  return {
      // The interval lies on one side of the threshold.
      {"<", 1, {0.90, 0.88, 0.92}, 0, yes},
      {"<", 1, {1.10, 1.08, 1.12}, 0, no},
      {">", 1, {0.90, 0.88, 0.92}, 0, no},
      {">", 1, {1.10, 1.08, 1.12}, 0, yes},
      {"<=", 1, {0.90, 0.88, 0.92}, 0, yes},
      {">=", 1, {1.10, 1.08, 1.12}, 0, yes},
      // The interval crosses the threshold.
      {"<", 1, {0.99, 0.97, 1.01}, 0, open},
      {">=", 1, {1.20, 0.99, 1.40}, 0, open},
      // An end of the interval is the threshold: the operator decides.
      {"<", 1, {0.95, 0.90, 1.00}, 0, open},
      {"<=", 1, {0.95, 0.90, 1.00}, 0, yes},
      {">", 1, {1.05, 1.00, 1.10}, 0, open},
      {">=", 1, {1.05, 1.00, 1.10}, 0, yes},
      {"<", 1, {1.05, 1.00, 1.10}, 0, no},
      {">", 1, {0.95, 0.90, 1.00}, 0, no},
      // The estimate must be at least the noise floor away from the threshold.
      {"<", 1, {0.985, 0.98, 0.99}, 0.02, open},
      {"<", 1, {0.975, 0.97, 0.98}, 0.02, yes},
      {">", 1, {1.015, 1.01, 1.02}, 0.02, open},
      // The distance to the threshold counts, not the distance to 1: a ratio near 1 refutes the claim of a large
      // effect.
      {">=", 1.1, {1.001, 0.998, 1.004}, 0.02, no},
      {">=", 1.1, {1.115, 1.11, 1.12}, 0.02, open},
      // The floor is relative: 0.02 at a ratio of 1 is 0.04 at a ratio of 2.
      {">", 2, {2.03, 2.02, 2.04}, 0.02, open},
      {">", 2, {2.05, 2.04, 2.06}, 0.02, yes},
      // Without an interval the verdict is inconclusive.
      {"<", 1, {0.9, std::nan(""), 0.92}, 0, open},
      {"<", 1, {0.9, std::nan(""), std::nan("")}, 0, open},
  };
}

}  // namespace attn
