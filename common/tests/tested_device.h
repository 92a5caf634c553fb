// The device that a test of kernels is built for (ATTN_TEST_DEVICE), opened once for all tests of the process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string_view>

#include "common/device.h"
#include "common/error.h"
#include "common/pipeline.h"

namespace attn::test {

constexpr std::string_view test_device = ATTN_TEST_DEVICE;
constexpr bool on_cuda = test_device.starts_with("cuda");

inline Device& device() {
  static const std::unique_ptr<Device> opened = Device::open(test_device);
  return *opened;
}

/// In memory only.
inline PipelineCache& pipelines() {
  static PipelineCache cache(device(), "");
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
