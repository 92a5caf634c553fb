// Tests the plan for a device that lacks a kernel.
#include <gtest/gtest.h>

#include "common/testing/devices.h"
#include "proto8_extension/problem.h"
#include "proto8_extension/sweep.h"

namespace attn {
namespace {

TEST(ExtensionPlanTest, ADeviceWithoutTheEmptyKernelSkipsTheCase) {
  DeviceInfo device = test::avx2();
  Case config;
  config.set("op", std::string("empty"));
  complete_extension(config, device);
  EXPECT_EQ(skip_reason(extension_plan(config, {device}), device), std::nullopt);
  Operations operations = *device.operations;
  operations.kernel_ending = "other.cpp";
  device.operations = &operations;
  EXPECT_EQ(skip_reason(extension_plan(config, {device}), device),
            "this device has no kernel for common/api/kernels/empty");
}

}  // namespace
}  // namespace attn
