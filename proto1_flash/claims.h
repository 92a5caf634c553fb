// The claims of proto1_flash, and how the measurements decide the claims.
#pragma once

#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs. `device` says which tile is the default. Only the
/// choice of duels (pairs of cases that are measured again) needs `device`; a caller that only draws conclusions may
/// leave `device` out.
std::vector<Claim> flash_claims(const DeviceInfo& device = {});

}  // namespace attn
