// Compiles kernels for a Hopper GPU on any machine that has NVRTC. NVRTC needs no GPU.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "common/base/error.h"
#include "common/device/device.h"
#include "common/testing/devices.h"

namespace attn::test {

/// Returns a device that compiles kernels for a Hopper GPU, and runs nothing. Throws DeviceMissing if the build has no
/// CUDA device, or the machine has no NVRTC.
std::unique_ptr<Device> open_hopper_compiler();

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

  std::unique_ptr<Device> compiler_;
};

}  // namespace attn::test
