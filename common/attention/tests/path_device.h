// Tests of one way to a kernel: on the device under test, or on the cpu described as another host.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string_view>

#include "common/attention/tests/flash_run.h"
#include "common/attention/tests/mutations.h"
#include "common/attention/tests/other_host.h"
#include "common/testing/tested_device.h"

namespace attn::test {

/// Skips itself where the path is not there.
template <typename Param>
class OnPath : public OnDevice<testing::TestWithParam<Param>> {
 protected:
  virtual const KernelPath& path() const = 0;

  void SetUp() override {
    OnDevice<testing::TestWithParam<Param>>::SetUp();
    if (this->IsSkipped()) return;
    const DeviceInfo& info = device().info();
    if (std::string_view(path().file) == amx_file && !info.has("amx-bf16")) GTEST_SKIP() << "this host has no AMX";
    if (std::string_view(path().host) == "znver4") {
      if (!info.has("avx512bf16")) GTEST_SKIP() << "this host does not multiply pairs of bf16";
      other_.emplace(device(), "znver4", 16, 32, std::vector<std::string>{"avx512bf16"});
    } else if (*path().host) {
      other_.emplace(device(), path().host, 16, 32);
    }
    if (const auto reason = skip_reason(block_mutation_config(path()), on().info())) GTEST_SKIP() << *reason;
    pipelines_.emplace(on(), "");
  }

  Device& on() { return other_ ? *other_ : device(); }
  /// In memory only, and of this test alone.
  PipelineCache& pipelines() { return *pipelines_; }

 private:
  std::optional<OtherHost> other_;
  std::optional<PipelineCache> pipelines_;
};

}  // namespace attn::test
