#include "common/attention/rope.h"

#include <algorithm>
#include <numeric>

#include "common/attention/kernels/rope.h"
#include "common/backends/cuda/operations.h"
#include "common/base/divided_up.h"

namespace attn {
namespace {

/// Returns how many threads share a row. Each thread takes two groups of elements.
int64_t threads_of_row(const RopeConfig& config, int64_t group) {
  const int64_t copied = (config.head_dim - config.rotary_dim) / group;
  return config.rotary_dim / 2 / group + (copied + 1) / 2;
}

class CudaRope : public RopeOperation {
 public:
  /// A threadgroup takes as many rows as it has threads for.
  RopeTiles tiles(const RopeConfig& config, const RopeShape& shape, const DeviceInfo& /*device*/) const override {
    const auto element_bytes = static_cast<int64_t>(size_bytes(shape.dtype));
    const int64_t group = std::gcd(config.rotary_dim / 2, 16 / element_bytes);
    return {.group = group,
            .rows = std::clamp<int64_t>(rope_threads / threads_of_row(config, group), 1, shape.rows),
            .alignment_bytes = element_bytes * group};
  }

  void share_out(Launch& launch, const RopeConfig& config, const RopeShape& shape,
                 const RopeTiles& tiles) const override {
    const auto groups = [](int64_t heads) { return static_cast<uint32_t>(divided_up(heads, rope_heads)); };
    launch.grid.x = groups(shape.q_heads) + groups(shape.kv_heads);
    // If there are more tiles than a grid may have threadgroups, each threadgroup loops over several tiles.
    launch.grid.y = std::min(launch.grid.y, cuda_operations().most_threadgroups.y);
    launch.threads = static_cast<uint32_t>(tiles.rows * threads_of_row(config, tiles.group));
  }
};

}  // namespace

const RopeOperation& cuda_rope() {
  static const CudaRope operation;
  return operation;
}

}  // namespace attn
