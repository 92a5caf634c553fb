// The claims of proto3_paged, and how the measurements decide the claims.
#pragma once

#include <cstdint>
#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

/// Returns the claims, which are registered before anything runs.
std::vector<Claim> paged_claims(const DeviceInfo& device);

/// Returns the bytes of threadgroup memory that the published study's kernel takes. The kernel holds, in f32, a tile of
/// 16 queries, a page of keys, a page of values, and the scores of the queries and keys. At head_dim 64 the study gives
/// the figures of this function: 8.5, 13, 22 and 40 KB for pages of 8, 16, 32 and 64 tokens. At head_dim 128 the study
/// gives 14, 22 and 38 KB for pages of 8, 16 and 32 tokens, which is 2.5 to 4 KB less than this function. The study and
/// this function agree on the largest page that fits into 32 KB: 32 tokens at head_dim 64, and 16 at head_dim 128.
int64_t published_page_bytes(int64_t page_size, int64_t head_dim);

}  // namespace attn
