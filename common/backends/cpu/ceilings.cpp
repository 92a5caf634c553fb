#include <algorithm>

#include "common/backends/cpu/operations.h"
#include "common/device/device.h"
#include "common/device/kernels/ceiling.h"

namespace attn {
namespace {

/// The kernels that measure the device's ceilings: its highest rates of arithmetic, of copies and of reads.
class CpuCeilings : public CeilingOperation {
 public:
  CeilingKernels kernels(const DeviceInfo& device) const override {
    // Two registers hold the operands. A latency of 4 cycles on two pipes needs at least 8 independent accumulators.
    const int accumulators = device.vector_registers >= 32 ? 24 : 12;
    return {.file = device.has("neon") ? "common/device/kernels/ceiling_neon.cpu.cpp"
                                       : "common/device/kernels/ceiling.cpu.cpp",
            .constants = {{"VECTOR_WIDTH", device.simd_width}, {"ACCUMULATORS", accumulators}, {"NON_TEMPORAL", 0}},
            .threads = 1,
            .lanes = static_cast<double>(device.simd_width),
            .fma_flops = 2.0 * device.simd_width * accumulators,
            .copy_threads = 1,
            .read_floats = device.simd_width,
            .copy_bytes = std::clamp(4 * device.last_level_cache_bytes, size_t{64} << 20, size_t{128} << 20),
            .flush_test_bytes = std::min(device.last_level_cache_bytes / 2, size_t{4} << 20),
            .copy_slices = 8,
            .copy_part_bytes = 0,
            .read_part_bytes = 0};
  }

  std::optional<CeilingArithmetic> products(const DeviceInfo& device, DType dtype) const override {
    if (dtype != DType::bf16) return std::nullopt;
    if (device.has("amx-bf16")) return CeilingArithmetic{"ceiling_amx", ceiling_amx_flops};
    if (device.has("neon") && device.has("bf16")) {
      return CeilingArithmetic{"ceiling_bf16", 4 * kernels(device).fma_flops};
    }
    if (device.has("avx512bf16")) return CeilingArithmetic{"ceiling_bf16", 2 * kernels(device).fma_flops};
    return std::nullopt;
  }
};

}  // namespace

const CeilingOperation& cpu_ceilings() {
  static const CpuCeilings operation;
  return operation;
}

}  // namespace attn
