// The order in which the `wgmma` variant takes its tiles.
#pragma once

#include <vector>

#include "common/attention/flash.h"
#include "common/attention/kernels/wgmma.h"

namespace attn {

/// Every tile of the outputs once, in the order in which multiprocessors take them. With a causal mask the heads are
/// taken in sections whose K and V stay in the last-level cache, and the long tiles of a section come first
/// (common/attention/kernels/README.md).
std::vector<WgmmaTile> wgmma_schedule(const FlashConfig& config, const DeviceInfo& device);

/// The query at which a head's first tile begins; it may be negative. With a causal mask a head's rows are cut into
/// tiles from the last row on, in units of 64. So only the shortest tile has consumers without rows.
int64_t wgmma_first_query(const FlashConfig& config);

}  // namespace attn
