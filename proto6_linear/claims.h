// What proto6_linear claims, and how its measurements answer.
#pragma once

#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

std::vector<Claim> linear_claims(const DeviceInfo& device);

}  // namespace attn
