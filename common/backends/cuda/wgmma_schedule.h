// The order in which the `wgmma` variant takes its tiles.
#pragma once

#include <vector>

#include "common/attention/flash.h"
#include "common/attention/kernels/wgmma.h"

namespace attn {

/// Every tile of the outputs once, in the order in which multiprocessors are to take them. Causal: the long ones first
/// within a section of heads whose K and V stay in the last-level cache (kernels/README.md).
std::vector<WgmmaTile> wgmma_schedule(const FlashConfig& config, const DeviceInfo& device);

/// Where a head's first tile begins. Causal rows are cut into tiles from the last on, in units of 64: consumers without
/// rows are then those of the shortest tile.
int64_t wgmma_first_query(const FlashConfig& config);

}  // namespace attn
