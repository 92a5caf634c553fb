// The claims of proto5_codegen, and how the measurements decide the claims.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns all claims. They are registered on every device. A claim about a generator that the device does not have
/// judges nothing.
std::vector<Claim> codegen_claims();

}  // namespace attn
