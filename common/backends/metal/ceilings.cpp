#include <algorithm>

#include "common/backends/metal/operations.h"
#include "common/device/device.h"
#include "common/kernel/types.h"

namespace attn {
namespace {

constexpr int threads = 128, copy_threads = 256;  // ceiling.h has the same numbers for Metal
constexpr int accumulators = 8;                   // independent chains of multiply-adds in a thread

/// The kernels that measure the device's ceilings: its highest rates of arithmetic, of copies and of reads.
class MetalCeilings : public CeilingOperation {
 public:
  CeilingKernels kernels(const DeviceInfo& device) const override {
    return {.file = "common/device/kernels/ceiling.metal",
            .constants = {{"ACCUMULATORS", accumulators}, {"IN_TYPE", F32}, {"NON_TEMPORAL", 0}},
            .threads = threads,
            .lanes = threads,
            .fma_flops = 2.0 * threads * accumulators,
            .copy_threads = copy_threads,
            .read_floats = copy_threads,
            .copy_bytes = std::max(8 * device.last_level_cache_bytes, size_t{64} << 20),
            .flush_test_bytes = device.last_level_cache_bytes / 2,
            .copy_slices = 1,
            .copy_part_bytes = copy_threads * 16,
            .read_part_bytes = 16 * copy_threads * 16};
  }

  // In an iteration each simdgroup of 32 threads does `accumulators` products of 8 x 8 by 8 x 8.
  std::optional<CeilingArithmetic> products(const DeviceInfo& /*device*/, DType dtype) const override {
    constexpr double flops = 2.0 * 8 * 8 * 8 * accumulators * threads / 32;
    return CeilingArithmetic{"ceiling_mma", flops, {{"IN_TYPE", element_type(dtype)}}};
  }
};

}  // namespace

const CeilingOperation& metal_ceilings() {
  static const MetalCeilings operation;
  return operation;
}

}  // namespace attn
