// The claims of proto5_codegen, and how the measurements decide the claims.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns all claims, for every device. On a device that lacks the generator of a claim, the claim gives no verdict.
std::vector<Claim> codegen_claims();

}  // namespace attn
