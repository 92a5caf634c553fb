#include "proto6_linear/findings.h"

namespace attn {

std::vector<Claim> linear_claims(const DeviceInfo& /*device*/) { return {}; }

}  // namespace attn
