// What proto1_flash claims, and how its measurements answer: pure functions of results.
#pragma once

#include <vector>

#include "common/experiment/experiment.h"
#include "common/records/finding.h"

namespace attn {

/// The hypotheses, registered before anything runs.
std::vector<Hypothesis> flash_hypotheses();

/// The pairs that the hypotheses want measured against each other, by what the sweep shows (best and worst tile, say).
/// Being measured anew, a pair is not biased by having been picked. The device says which tile is the default.
std::vector<Duel> flash_duels(const std::vector<Measurement>& results, const DeviceInfo& device);

std::vector<Conclusion> flash_conclusions(const std::vector<Measurement>& results,
                                          const std::vector<Comparison>& comparisons);

}  // namespace attn
