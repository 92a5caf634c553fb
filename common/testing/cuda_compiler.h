// NVRTC, which needs no GPU: kernels for a Hopper GPU are compiled on any machine that has it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/device/cuda/compiler.h"
#include "common/device/cuda/cubin.h"
#include "common/device/device.h"
#include "common/testing/devices.h"

namespace attn::test {

/// A test that needs NVRTC; skipped where it is not there.
class CudaCompilerTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      compiler_.emplace(hopper().arch);
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
  }

  std::optional<CudaCompiler> compiler_;
};

/// Compiles as a Hopper GPU would; what is submitted is not run.
class CompilingDevice : public Device {
 public:
  explicit CompilingDevice(const CudaCompiler& compiler) : compiler_(compiler) { info_ = hopper(); }
  void* allocate(size_t bytes) override { return std::malloc(bytes); }
  void release(void* pointer) noexcept override { std::free(pointer); }
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override {}
  Binary compile(const KernelSource& source, const CompileOptions& options) override {
    return compiler_.compile(source, options);
  }
  std::string compiler_identity() const override { return compiler_.identity(); }
  std::unique_ptr<Kernel> load(const Binary&, const std::string&) override { return std::make_unique<Kernel>(); }
  std::vector<double> submit(const CommandEncoder&) override { return {}; }

 private:
  const CudaCompiler& compiler_;
};

}  // namespace attn::test
