// The claims of proto7_variants, and how the measurements decide the claims.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs. On each shape the claims compare the times of:
/// - attention with modifiers, and plain attention, which has no modifiers;
/// - a mask with lists of the key blocks to visit, and the same mask made in another way;
/// - score modifiers that are read at run time or called for each score, and score modifiers that are constants;
/// - query heads that share key/value heads, and query heads that each have a key/value head;
/// - attention on copies of the shared heads, and attention that finds the shared heads by an index;
/// - RoPE inside the attention kernel, and RoPE by a launch before attention;
/// - the launch of RoPE by itself, and attention;
/// - the launch of RoPE by itself, and a copy from buffer to buffer;
/// - the launch that copies heads by itself, and attention;
/// - attention with a modifier at the tile that is the fastest for plain attention, and at other tiles.
std::vector<Claim> variants_claims();

}  // namespace attn
