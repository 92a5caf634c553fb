// The kernels for hosts of every family.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "common/device/cpu/compiler.h"
#include "common/paged/decode.h"
#include "common/paged/tests/compiled_config.h"

namespace attn {
namespace {

class PagedHosts : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, PagedHosts,
                         testing::Values("x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4", "graniterapids",
                                         "neoverse-n1"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(PagedHosts, CompileEveryKernel) {
  const CpuTarget target = CpuTarget::named(GetParam());
  std::unique_ptr<CpuCompiler> compiler;
  try {
    compiler = std::make_unique<CpuCompiler>(target);
  } catch (const DeviceMissing& error) {
    GTEST_SKIP() << error.what();
  }
  DeviceInfo info = cpu_info(target);
  info.threadgroup_memory_bytes = 512 << 10;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::int8}) {
    const DType of_q = has_scales(dtype) ? DType::f32 : dtype;
    for (const Launch& launch : decode_plan(compiled_config(of_q, dtype, 3), info, 1024).launches) {
      EXPECT_FALSE(compiler->compile(launch.source).code.empty()) << launch.source.key();
    }
  }
}

}  // namespace
}  // namespace attn
