// The claims of proto7_variants, and how the measurements decide the claims.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs. The claims compare, on each shape:
/// - plain attention, and attention with one modifier or with several modifiers;
/// - masks by lists, and other ways to make the same mask;
/// - score modifiers as constants, and score modifiers that are read at run time or called for each score;
/// - query heads that have keys of their own, and query heads that share keys;
/// - attention that finds shared heads by an index, and attention on copies of the shared heads;
/// - RoPE by a launch before attention, and RoPE inside the attention kernel;
/// - the launch of RoPE or of the copies alone, and attention; the launch of RoPE alone, and a copy;
/// - in attention with a modifier: the tile that is best for plain attention, and other tiles.
std::vector<Claim> variants_claims();

}  // namespace attn
