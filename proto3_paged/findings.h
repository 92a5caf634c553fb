// What proto3_paged claims, and how its measurements answer.
#pragma once

#include <vector>

#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs: pages against a contiguous cache, by their size, order and layout; the
/// share of the rate of memory; the rule for workers, the second launch that joins, heads that share keys, and caches
/// of 8 bits: their time, and their error.
std::vector<Claim> paged_claims();

}  // namespace attn
