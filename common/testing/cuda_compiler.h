// NVRTC, which needs no GPU: kernels for a Hopper GPU are compiled on any machine that has it.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "common/base/error.h"
#include "common/device/device.h"
#include "common/testing/devices.h"

namespace attn::test {

/// Compiles as a Hopper GPU would; what is submitted is not run. Throws DeviceMissing where the build has no CUDA
/// device, or the machine no NVRTC.
std::unique_ptr<Device> open_hopper_compiler();

/// A test that needs NVRTC; skipped where it is not there, and in a build without the CUDA device.
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
