#include "common/attention/rope.h"

#include <algorithm>
#include <numeric>

#include "common/backends/cpu/operations.h"

namespace attn {
namespace {

/// Returns the number of floats that a row's cosines take in threadgroup memory. The row's sines take as many.
int64_t factors(const RopeConfig& config) {
  return config.pairing == RopePairing::interleaved ? config.rotary_dim : config.rotary_dim / 2;
}

class CpuRope : public RopeOperation {
 public:
  /// A tile has at most 64 rows, and usually fewer, so that the cosines and sines of its rows stay in the caches. If
  /// there are enough rows, every thread gets at least four tiles.
  RopeTiles tiles(const RopeConfig& config, const RopeShape& shape, const DeviceInfo& device) const override {
    constexpr int64_t floats = 8192, most = 64;
    const int64_t pairs = config.rotary_dim / 2;
    const int64_t fit = std::clamp<int64_t>(floats / (2 * factors(config)), 1, most);
    return {
        .group = std::gcd<int64_t>(config.pairing == RopePairing::interleaved ? 2 * pairs : pairs, device.simd_width),
        .rows = std::clamp<int64_t>(shape.batch * shape.rows / (4 * static_cast<int64_t>(device.units)), 1, fit),
        .alignment_bytes = static_cast<int64_t>(size_bytes(shape.dtype))};
  }

  void share_out(Launch& launch, const RopeConfig& config, const RopeShape& /*shape*/,
                 const RopeTiles& tiles) const override {
    launch.threadgroup_bytes = static_cast<size_t>(2 * tiles.rows * factors(config)) * sizeof(float);
  }
};

}  // namespace

const RopeOperation& cpu_rope() {
  static const CpuRope operation;
  return operation;
}

}  // namespace attn
