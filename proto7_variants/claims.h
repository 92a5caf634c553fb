// The claims of proto7_variants, and how its measurements decide them.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs: every modifier by itself and all together against plain attention, on
/// each shape; masks by lists against other ways to make the same mask; score modifiers at run time and by calls
/// against score modifiers as constants; query heads that share keys against query heads with keys of their own; copies
/// of shared heads against an index; RoPE before attention and RoPE inside the attention kernel; whether a modifier
/// asks for another tile.
std::vector<Claim> variants_claims();

}  // namespace attn
