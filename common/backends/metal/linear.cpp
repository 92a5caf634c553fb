#include <fmt/format.h>

#include "common/backends/metal/operations.h"
#include "common/base/divided_up.h"
#include "common/linear/kernels/phases_metal.h"
#include "common/linear/launch.h"

namespace attn {
namespace {

constexpr int64_t fused_chunk = metal_linear_threads / 32 * 8;  // a simdgroup works on 8 tokens of a chunk

class MetalLinear : public LinearOperation {
 public:
  std::string unable(const LinearConfig& config) const override {
    if (config.scan == "lookback") return "scan lookback: on Metal no threadgroup may wait for another";
    if (config.variant != "fused") return {};
    if (config.segments > 1) {
      return fmt::format("segments {}: on Metal no threadgroup may wait for another, so segments must be 0 or 1",
                         config.segments);
    }
    if (config.chunk != fused_chunk) {
      return fmt::format("chunk {}: the fused kernel on Metal takes chunks of {} tokens", config.chunk, fused_chunk);
    }
    return {};
  }

  int64_t step(const LinearConfig& config) const override { return config.chunk; }
  int64_t scan_rows(const LinearConfig& /*config*/, const DeviceInfo& /*device*/) const override { return 8; }
  int64_t scan_groups(const DeviceInfo& device) const override { return 8 * device.units; }
  Bound bound(const LinearConfig& /*config*/) const override { return Bound::memory; }
  int64_t chunk(const std::string& /*variant*/) const override { return fused_chunk; }

  void complete(Launch& launch, const LinearConfig& config, const DeviceInfo& /*device*/) const override {
    const std::string& entry = launch.source.entry;
    constexpr int64_t simd = 32;
    launch.threads = metal_linear_threads;
    if (entry == "chunk_h") {
      const MetalChunkLayout layout(static_cast<int>(config.head_dim), static_cast<int>(config.value_dim));
      launch.threadgroup_bytes = static_cast<size_t>(layout.floats) * sizeof(float);
    } else if (entry == "fused") {
      const MetalFusedLayout layout(static_cast<int>(config.head_dim));
      launch.source.constants["CAUSAL"] = config.causal;
      launch.grid.z = static_cast<uint32_t>(divided_up(config.value_dim, int64_t{layout.slice}));
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
