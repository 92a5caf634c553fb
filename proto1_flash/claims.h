// The claims of proto1_flash, and how its measurements decide them.
#pragma once

#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs. The choice of duels needs `device`, which says which tile is the
/// default. Conclusions do not need `device`.
std::vector<Claim> flash_claims(const DeviceInfo& device = {});

}  // namespace attn
