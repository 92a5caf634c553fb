#include <algorithm>

#include "common/backends/cuda/operations.h"
#include "common/device/device.h"
#include "common/device/kernels/ceiling.h"
#include "common/kernel/types.h"

namespace attn {
namespace {

/// The kernels that measure the device's ceilings: its highest rates of arithmetic, of copies and of reads.
class CudaCeilings : public CeilingOperation {
 public:
  CeilingKernels kernels(const DeviceInfo& device) const override {
    constexpr int accumulators = 8;  // independent chains of multiply-adds; a latency of 4 cycles needs at least 4
    return {.file = "common/device/kernels/ceiling.cuda.cu",
            .constants = {{"ACCUMULATORS", accumulators}, {"IN_TYPE", BF16}, {"NON_TEMPORAL", 0}},
            .threads = ceiling_threads,
            .lanes = ceiling_threads,
            .fma_flops = 2.0 * ceiling_threads * accumulators,
            .copy_threads = copy_threads,
            .read_floats = copy_threads,
            .copy_bytes = std::max(32 * device.last_level_cache_bytes, size_t{512} << 20),
            .flush_test_bytes = device.last_level_cache_bytes / 2,
            .copy_slices = 1,
            .copy_part_bytes = copy_threads * 16,
            .read_part_bytes = 16 * copy_threads * 16};
  }

  std::optional<CeilingArithmetic> products(const DeviceInfo& device, DType dtype) const override {
    if (!device.has("mma")) return std::nullopt;
    const double columns = static_cast<double>(ceiling_row_bytes) / static_cast<double>(size_bytes(dtype));
    return CeilingArithmetic{"ceiling_mma", 2.0 * ceiling_m * ceiling_n * columns, {{"IN_TYPE", element_type(dtype)}}};
  }
};

}  // namespace

const CeilingOperation& cuda_ceilings() {
  static const CudaCeilings operation;
  return operation;
}

}  // namespace attn
