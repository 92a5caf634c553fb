// What proto4_constants claims, and how its measurements answer.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs: what variants cost one by one; compiling against disk and archive, many
/// workers against one, with precompiled headers against without, new processes with a cache against without, and
/// constants read at run time against compiled ones.
std::vector<Claim> constants_claims();

}  // namespace attn
