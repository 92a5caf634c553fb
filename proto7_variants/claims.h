// The claims of proto7_variants, and how its measurements decide them.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs: every modifier by itself and all together against plain attention, on
/// each shape; masks by lists against other ways to the same mask; score modifiers at run time and by calls against
/// constants; heads that share keys against heads that do not, and copies of shared heads against an index; RoPE before
/// attention and in it; whether a modifier asks for another tile.
std::vector<Claim> variants_claims();

}  // namespace attn
