// Tests whether kernels compile for other CPUs than the host's. Only for tests in files cpu_*_test.cpp, because this
// header needs a build with the cpu device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "common/backends/cpu/compiler.h"
#include "common/base/error.h"
#include "common/device/device.h"

namespace attn::test {

/// The parameter is LLVM's name of a CPU. A test is skipped if LLVM cannot compile for this CPU.
class OtherCpus : public testing::TestWithParam<const char*> {
 public:
  static std::string name_of(const testing::TestParamInfo<const char*>& test) {
    std::string name = test.param;
    std::ranges::replace(name, '-', '_');
    return name;
  }

 protected:
  void SetUp() override {
    const CpuTarget target = CpuTarget::named(GetParam());
    try {
      compiler_ = std::make_unique<CpuCompiler>(target);
    } catch (const DeviceMissing& error) {
      GTEST_SKIP() << error.what();
    }
    info = cpu_info(target);
    info.threadgroup_memory_bytes = 512 << 10;
  }
  void expect_compiles(const KernelSource& source) const {
    EXPECT_FALSE(compiler_->compile(source).code.empty()) << source.key();
  }

  DeviceInfo info;

 private:
  std::unique_ptr<CpuCompiler> compiler_;
};

}  // namespace attn::test
