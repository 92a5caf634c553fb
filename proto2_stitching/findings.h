// What proto2_stitching claims, and how its measurements answer: pure functions of results.
#pragma once

#include <vector>

#include "common/experiment/experiment.h"
#include "common/records/finding.h"

namespace attn {

/// The hypotheses, registered before anything runs.
std::vector<Hypothesis> stitch_hypotheses();

/// Every form and grain against `monolithic`, on each shape and function.
std::vector<Duel> stitch_duels(const std::vector<Measurement>& results);

/// `units` of the device: what runs at once, each a call at a time.
std::vector<Conclusion> stitch_conclusions(const std::vector<Measurement>& results,
                                           const std::vector<Comparison>& comparisons, uint32_t units);

/// Calls that are left in the machine code a record's `pipeline` describes; nothing where the device does not tell.
std::optional<int64_t> calls_left(const Json& pipeline);

}  // namespace attn
