// Comparisons that no device measured, for tests of claims.
#pragma once

#include "common/records/claim.h"

namespace attn::test {

/// Returns the comparison of a baseline and a contender that take these seconds, with narrow intervals. The times are
/// with cold caches, so that a claim is decided even if memory limits the cases.
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

/// Returns a small spread between processes, so that the interval of a made-up comparison decides a verdict.
inline Processes steady_processes() {
  const Spread little{1e-4, 30};
  return {.spreads = {{FigureKind::ratio, little}, {FigureKind::share, little}, {FigureKind::absolute, little}}};
}

}  // namespace attn::test
