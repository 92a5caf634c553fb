// What proto3_paged claims, and how its measurements answer.
#pragma once

#include <cstdint>
#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

/// The claims, registered before anything runs: pages against a contiguous cache, by their size, order and layout; the
/// share of the rate of memory; the rule for workers, the second launch that joins, heads that share keys, and caches
/// of 8 bits: their time, and their error; what the published study says of pages of 16, and of threadgroup memory, and
/// slots that stay empty.
std::vector<Claim> paged_claims(const DeviceInfo& device);

/// Threadgroup memory of the published kernel, in bytes: in f32 a tile of 16 queries, a page of keys and one of values,
/// and the scores between them. The study tells as much at head_dim 64: 8.5, 13, 22, 40 KB with pages of 8 to 64. At
/// 128 it tells 14, 22, 38 KB with pages of 8 to 32, 2.5 to 4 KB less than this. Either way the largest page that 32 KB
/// hold has 32 and 16 tokens.
int64_t published_page_bytes(int64_t page_size, int64_t head_dim);

}  // namespace attn
