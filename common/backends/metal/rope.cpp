#include "common/attention/rope.h"

#include <algorithm>

#include "common/attention/kernels/rope.h"
#include "common/backends/metal/operations.h"
#include "common/base/divided_up.h"

namespace attn {
namespace {

class MetalRope : public RopeOperation {
 public:
  /// A unit of a row is a pair of elements to rotate, or an element to copy. A thread computes a unit in up to
  /// rope_heads heads, and several units if a row has more than rope_threads units. A threadgroup gets as many rows as
  /// it has threads for, with one thread for each unit, but at least one row.
  RopeTiles tiles(const RopeConfig& config, const RopeShape& shape, const DeviceInfo& /*device*/) const override {
    const int64_t units = config.head_dim - config.rotary_dim / 2;
    return {.group = 1,
            .rows = std::clamp<int64_t>(rope_threads / units, 1, shape.rows),
            .alignment_bytes = static_cast<int64_t>(size_bytes(shape.dtype))};
  }

  void share_out(Launch& launch, const RopeConfig& /*config*/, const RopeShape& shape,
                 const RopeTiles& /*tiles*/) const override {
    const auto groups = [](int64_t heads) { return static_cast<uint32_t>(divided_up(heads, rope_heads)); };
    launch.grid.x = groups(shape.q_heads) + groups(shape.kv_heads);
    launch.threads = rope_threads;
  }
};

}  // namespace

const RopeOperation& metal_rope() {
  static const MetalRope operation;
  return operation;
}

}  // namespace attn
