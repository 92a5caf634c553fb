// The claims of proto7_variants, and how the measurements decide them.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs.
std::vector<Claim> variants_claims();

}  // namespace attn
