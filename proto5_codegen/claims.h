// The claims of proto5_codegen, and how its measurements decide them.
#pragma once

#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

std::vector<Claim> codegen_claims(const DeviceInfo& device);

}  // namespace attn
