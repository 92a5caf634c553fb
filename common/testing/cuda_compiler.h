// Compiles kernels for a Hopper GPU on any machine that has NVRTC. NVRTC needs no GPU.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/attention/flash.h"
#include "common/base/error.h"
#include "common/device/device.h"
#include "common/testing/captured_log.h"
#include "common/testing/devices.h"

namespace attn::test {

/// Returns a device that compiles kernels for a Hopper GPU, and runs nothing. Throws DeviceMissing if the build has no
/// CUDA device, or the machine has no NVRTC.
std::unique_ptr<Device> open_hopper_compiler();

/// Returns a configuration of attention over 2048 queries and keys, without a tile.
inline FlashConfig hopper_flash(const std::string& variant, DType dtype, int64_t head_dim, int64_t kv_heads = 8) {
  FlashConfig config;
  config.variant = variant;
  config.shape = {.q_heads = 32, .kv_heads = kv_heads, .q_len = 2048, .kv_len = 2048, .head_dim = head_dim};
  config.dtype = config.out_dtype = dtype;
  return config;
}

/// A test that needs NVRTC, and is skipped without it.
class CudaCompilerTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      compiler_ = open_hopper_compiler();
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
  }

  /// Expects that the kernel spills no registers, and that the compiler does not warn, as it does if it serialises
  /// wgmma.
  void expect_clean(const KernelSource& source) {
    const CapturedLog log;
    EXPECT_EQ(compiler_->compile(source, {}).spill_bytes, 0) << source.key();
    EXPECT_EQ(log.text(), "") << source.key();
  }

  std::unique_ptr<Device> compiler_;
};

}  // namespace attn::test
