// The claims of proto7_variants, and how the measurements decide the claims.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs. They compare:
/// - every modifier by itself, and all modifiers together, with plain attention, on each shape;
/// - masks by lists with other ways to make the same mask;
/// - score modifiers at run time, and score modifiers by calls, with score modifiers as constants;
/// - query heads that share keys with query heads that have keys of their own;
/// - copies of shared heads with an index;
/// - RoPE before attention with RoPE inside the attention kernel;
/// - the tile that is best for plain attention with other tiles, in attention with a modifier.
std::vector<Claim> variants_claims();

}  // namespace attn
