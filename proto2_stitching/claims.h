// The claims of proto2_stitching, and how the measurements decide the claims.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs. On each shape and score function, the claims compare
/// each form (how the kernel reaches the function) and each grain (how many scores a call takes) with the form
/// `monolithic`, which has the function's text in place. Only the conclusions of `call_ns` read `units`
/// (DeviceInfo::units): they give the time of a call as if each unit made one call at a time.
std::vector<Claim> stitch_claims(uint32_t units = 0);

/// Returns the number of call instructions in a record's `pipeline`, or nothing if the instructions were not counted.
std::optional<int64_t> calls_left(const Json& pipeline);

}  // namespace attn
