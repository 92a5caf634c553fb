// What proto2_stitching claims, and how its measurements answer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs: every form and grain against `monolithic`, on each shape and function.
/// `units` of the device, what runs at once, each a call at a time; only conclusions need them.
std::vector<Claim> stitch_claims(uint32_t units = 0);

/// Calls that are left in the machine code a record's `pipeline` describes; nothing where the device does not tell.
std::optional<int64_t> calls_left(const Json& pipeline);

}  // namespace attn
