// The order in which the `wgmma` variant takes its tiles.
#pragma once

#include <vector>

#include "common/attention/flash.h"
#include "common/attention/kernels/wgmma.h"

namespace attn {

/// Returns every tile of the output once, in the order in which multiprocessors take the tiles. With a causal mask the
/// heads are taken in sections, so that the K and V of most sections stay in the last-level cache. Within a section the
/// tiles with the most keys come first (common/attention/kernels/README.md).
std::vector<WgmmaTile> wgmma_schedule(const FlashConfig& config, const DeviceInfo& device);

/// Returns the query at which a head's first tile begins. Without a causal mask this is query 0. With a causal mask the
/// head's rows, rounded up to a multiple of 64, are cut into tiles from the last row backwards. So the first tile may
/// begin before the first row: at -64, for example. A consumer (a warpgroup that computes products) has 64 rows. So
/// with a causal mask only the first tile, which has the fewest keys, can have consumers without rows.
int64_t wgmma_first_query(const FlashConfig& config);

}  // namespace attn
