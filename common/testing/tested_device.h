// The device under test, opened once for all tests of the process: the CPU, or what ATTN_TEST_DEVICE names.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "common/base/error.h"
#include "common/device/device.h"
#include "common/device/pipeline_cache.h"

namespace attn::test {

inline const std::string test_device = [] {
  const char* named = std::getenv("ATTN_TEST_DEVICE");
  return std::string(named ? named : "cpu:threads=2");
}();
inline const bool on_cuda = test_device.starts_with("cuda");

inline Device& device() {
  static const std::unique_ptr<Device> opened = Device::open(test_device);
  return *opened;
}

/// On disk in the build folder, so that tests in processes of their own compile a kernel once.
inline PipelineCache& pipelines() {
  static PipelineCache cache(device(), ATTN_TEST_KERNELS);
  return cache;
}

/// Skips itself where the device is not there.
template <typename Test>
class OnDevice : public Test {
 protected:
  void SetUp() override {
    try {
      device();
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

}  // namespace attn::test
