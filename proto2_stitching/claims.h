// The claims of proto2_stitching, and how the measurements decide the claims.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs. They compare each form and grain with the form
/// `monolithic`, on each shape and function. The device has `units` units (DeviceInfo::units). A unit runs one
/// threadgroup at a time, and makes one call at a time. Only conclusions need `units`.
std::vector<Claim> stitch_claims(uint32_t units = 0);

/// Returns the number of call instructions in the machine code, or nothing if the instructions were not counted.
/// `pipeline` is the field `pipeline` of a record.
std::optional<int64_t> calls_left(const Json& pipeline);

}  // namespace attn
