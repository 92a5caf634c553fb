// The claims of proto4_constants, and how the measurements decide the claims.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs.
std::vector<Claim> constants_claims();

}  // namespace attn
