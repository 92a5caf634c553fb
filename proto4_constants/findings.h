// What proto4_constants claims beforehand, which pairs it measures against each other, and what it concludes. No side
// effects.
#pragma once

#include <vector>

#include "common/experiment/experiment.h"

namespace attn {

std::vector<Hypothesis> constants_hypotheses();

/// Compiling against disk and archive, many workers against one, with precompiled headers against without, new
/// processes with a cache against without, and constants read at run time against compiled ones.
std::vector<Duel> constants_duels(const std::vector<Measurement>& results);

std::vector<Conclusion> constants_conclusions(const std::vector<Measurement>& results,
                                              const std::vector<Comparison>& comparisons);

}  // namespace attn
