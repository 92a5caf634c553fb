// The device under test: the CPU, or the device that ATTN_TEST_DEVICE names. All tests of a process share the device.
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

/// Kernels for the device under test, in a folder that all test processes share, so that a kernel is compiled once.
inline PipelineCache& pipelines() {
  static PipelineCache cache(device(), ATTN_TEST_KERNELS);
  return cache;
}

/// Launches a problem of an experiment once, with poisoned outputs, and checks the outputs.
template <typename AnyProblem>
auto launched(AnyProblem& problem, Device& on = device()) {
  problem.poison();
  CommandEncoder encoder;
  problem.encode(encoder);
  on.submit(encoder);
  return problem.check();
}

/// A test that skips itself if the device under test is missing.
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
