// The claims of proto2_stitching, and how its measurements decide them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs: each form and grain against `monolithic`, on each shape and function.
/// The device has `units` units (DeviceInfo::units). A unit runs one threadgroup at a time, and makes one call at a
/// time. Only conclusions need `units`.
std::vector<Claim> stitch_claims(uint32_t units = 0);

/// The number of call instructions in the machine code, from the `pipeline` of a record. Nothing if the record has no
/// count of instructions.
std::optional<int64_t> calls_left(const Json& pipeline);

}  // namespace attn
