// The claims of proto1_flash, and how the measurements decide the claims.
#pragma once

#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs. `device` says which tile is the default. It is needed
/// only to choose duels (pairs of cases that are measured again), not to draw conclusions.
std::vector<Claim> flash_claims(const DeviceInfo& device = {});

}  // namespace attn
