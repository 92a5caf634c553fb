// The claims of proto8_extension, and how the measurements decide them.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

std::vector<Claim> extension_claims();

}  // namespace attn
