// The claims of proto8_extension, and how its measurements decide them.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

std::vector<Claim> extension_claims();

}  // namespace attn
