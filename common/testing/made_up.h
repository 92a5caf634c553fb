// Comparisons that no device measured, for tests of claims.
#pragma once

#include "common/records/claim.h"

namespace attn::test {

/// Returns a comparison with narrow intervals. The times are with cold caches, because judge() decides nothing about
/// memory-bound cases with warm caches.
inline Comparison made_up_comparison(const Duel& duel, double baseline_s, double contender_s) {
  const double ratio = contender_s / baseline_s;
  const auto timing = [](double seconds) {
    return Timing{Scope::device_cold, 10, 10, seconds, seconds, seconds, 0.01, seconds, "ci"};
  };
  return {.hypothesis = duel.hypothesis,
          .baseline = duel.baseline,
          .contender = duel.contender,
          .ratio = {ratio, 0.999 * ratio, 1.001 * ratio},
          .aa = {1, 0.999, 1.001},
          .cv = 0.01,
          .time = {timing(baseline_s), timing(contender_s)}};
}

/// Returns Processes with so small a spread that judge() decides about made-up comparisons.
inline Processes steady_processes() {
  return {.prior = [](const auto&, FigureKind) { return Spread{1e-4, 30}; }};
}

}  // namespace attn::test
