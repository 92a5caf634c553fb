// The kernels for a Hopper GPU, compiled without one.
#include <gtest/gtest.h>

#include "common/testing/cuda_compiler.h"
#include "proto3_paged/decode.h"
#include "proto3_paged/tests/compiled_config.h"

namespace attn {
namespace {

using PagedCudaCompileTest = test::CudaCompilerTest;

TEST_F(PagedCudaCompileTest, EveryTileOfTheHost) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const int64_t q_len : {1, 4, 16}) {
      const Plan plan = decode_plan(compiled_config(dtype, q_len), test::hopper(), 1024);
      ASSERT_FALSE(skip_reason(plan, test::hopper())) << *skip_reason(plan, test::hopper());
      for (const Launch& launch : plan.launches) {
        EXPECT_EQ(compiler_->compile(launch.source, {}).spill_bytes, 0) << launch.source.key();
      }
    }
  }
}

}  // namespace
}  // namespace attn
