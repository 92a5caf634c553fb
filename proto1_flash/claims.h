// What proto1_flash claims, and how its measurements answer.
#pragma once

#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs. The device says which tile is the default; only duels need it.
std::vector<Claim> flash_claims(const DeviceInfo& device = {});

}  // namespace attn
