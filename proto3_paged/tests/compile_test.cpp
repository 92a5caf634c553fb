// The kernels for other machines: for hosts of every family, and for a Hopper GPU, compiled without one.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "common/device/cpu/compiler.h"
#include "common/testing/cuda_compiler.h"
#include "proto3_paged/decode.h"

namespace attn {
namespace {

DecodeConfig compiled_config(DType dtype, DType cache_dtype, int64_t q_len) {
  return {.shape = {.batch = 2, .q_heads = 10, .kv_heads = 2, .q_len = q_len, .kv_len = 512, .head_dim = 128},
          .dtype = dtype,
          .cache_dtype = cache_dtype,
          .out_dtype = dtype,
          .page_size = 16,
          .join_last = false};
}

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

using PagedCudaCompileTest = test::CudaCompilerTest;

TEST_F(PagedCudaCompileTest, EveryTileOfTheHost) {
  using enum DType;
  for (const auto& [dtype, cache_dtype] :
       {std::pair{f32, f32}, {f16, f16}, {bf16, bf16}, {f16, e4m3}, {f16, int8}, {bf16, e4m3}, {bf16, int8}}) {
    for (const int64_t q_len : {1, 4, 16}) {
      const Plan plan = decode_plan(compiled_config(dtype, cache_dtype, q_len), test::hopper(), 1024);
      ASSERT_FALSE(skip_reason(plan, test::hopper())) << *skip_reason(plan, test::hopper());
      for (const Launch& launch : plan.launches) {
        EXPECT_EQ(compiler_->compile(launch.source, {}).spill_bytes, 0) << launch.source.key();
      }
    }
  }
}

}  // namespace
}  // namespace attn
