// The claims of proto6_linear.
#pragma once

#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

std::vector<Claim> linear_claims(const DeviceInfo& device);

}  // namespace attn
