#include <fmt/format.h>

#include "common/backends/metal/operations.h"
#include "common/base/divided_up.h"
#include "common/linear/kernels/phases_metal.h"
#include "common/linear/launch.h"

namespace attn {
namespace {

class MetalLinear : public LinearOperation {
 public:
  // On these GPUs threadgroups must not wait for one another, so there is no scan that looks back.
  std::string unable(const LinearConfig& config) const override {
    if (config.variant == "fused") return "variant fused: on Metal there are phases and recurrent";
    if (config.scan == "lookback") return "scan lookback: on Metal a scan runs in passes";
    return {};
  }

  int64_t step(const LinearConfig& config) const override { return config.chunk; }
  int64_t scan_rows(const LinearConfig& /*config*/, const DeviceInfo& /*device*/) const override { return 8; }
  int64_t scan_groups(const DeviceInfo& device) const override { return 8 * device.units; }
  Bound bound(const LinearConfig& /*config*/) const override { return Bound::memory; }
  int64_t chunk(const std::string& /*variant*/) const override { return 64; }

  void complete(Launch& launch, const LinearConfig& config, const DeviceInfo& /*device*/) const override {
    const std::string& entry = launch.source.entry;
    constexpr int64_t simd = 32;
    launch.threads = metal_linear_threads;
    if (entry == "chunk_h") {
      const MetalChunkLayout layout(static_cast<int>(config.head_dim), static_cast<int>(config.value_dim));
      launch.threadgroup_bytes = static_cast<size_t>(layout.floats) * sizeof(float);
    } else if (entry == "recurrent") {
      const int64_t parts = divided_up(config.head_dim, simd);
      launch.grid.z = static_cast<uint32_t>(divided_up(config.value_dim, simd));
      launch.threads = static_cast<uint32_t>(parts * simd);
      launch.threadgroup_bytes = metal_threadgroup_bytes(static_cast<size_t>(2 * parts * (simd + 1)) * sizeof(float));
    }
  }

  bool resets_flags() const override { return false; }
};

}  // namespace

const LinearOperation& metal_linear() {
  static const MetalLinear operation;
  return operation;
}

}  // namespace attn
