// The claims of proto1_flash, and how its measurements decide them.
#pragma once

#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs. The device says which tile is the default. Only duels need the device.
std::vector<Claim> flash_claims(const DeviceInfo& device = {});

}  // namespace attn
