// The base of tests that run on one KernelPath (mutations.h: a kernel, its type and its host). The tests run on the
// device under test, or on the cpu described as the path's host.
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

/// Returns `device` described as `host`; if `host` is empty, as a host that runs the kernel of `file`. Returns null if
/// the test can use `device` as it is.
inline std::unique_ptr<Device> host_of(std::string_view file, Device& device, std::string_view host = "") {
  std::vector<std::string> features;
  if (file == amx_file) {
    host = "sapphirerapids";
    features = {"amx-bf16", "avx512bf16"};
  } else if (host == "znver4") {
    features = {"avx512bf16"};
  } else if (file.find("/neon") != file.npos) {
    return std::make_unique<OtherHost>(device, "neoverse-v1", 4, 32, test::neon_features);
  } else if (file == tuned_file && host.empty() && device.info().has("neon")) {
    return std::make_unique<OtherHost>(device, "x86-64-v2", 4, 16);
  }
  if (host.empty()) return nullptr;
  return std::make_unique<OtherHost>(device, std::string(host), 16, 32, features);
}

/// A test of one KernelPath. The test skips itself if the device cannot run the path's kernel.
template <typename Param>
class OnPath : public OnDevice<testing::TestWithParam<Param>> {
 protected:
  virtual const KernelPath& path() const = 0;

  void SetUp() override {
    OnDevice<testing::TestWithParam<Param>>::SetUp();
    if (this->IsSkipped()) return;
    other_ = host_of(path().file, device(), path().host);
    if (const auto reason = skip_reason(block_mutation_config(path()), on().info())) GTEST_SKIP() << *reason;
    pipelines_.emplace(on(), "");
  }

  Device& on() { return other_ ? *other_ : device(); }
  /// Pipelines of this test alone, in memory only.
  PipelineCache& pipelines() { return *pipelines_; }

 private:
  std::unique_ptr<Device> other_;
  std::optional<PipelineCache> pipelines_;
};

}  // namespace attn::test
