// What proto8_extension claims, and how its measurements answer.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

std::vector<Claim> extension_claims();

}  // namespace attn
