// Compiles CUDA kernels without a GPU. A constant must compile as a run-time parameter if and only if run_time_axes()
// names the constant.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "common/base/error.h"
#include "common/testing/cuda_compiler.h"
#include "proto4_constants/variants.h"

namespace attn {
namespace {

using test::hopper;

using ConstantsCudaCompileTest = test::CudaCompilerTest;

TEST_F(ConstantsCudaCompileTest, WhatCanBeReadAtRunTime) {
  for (const char* kernel : {"naive", "mma_sync", "wgmma"}) {
    const std::vector<std::string> said = run_time_axes(kernel, hopper());
    const std::vector<Variant> grid = variant_grid(kernel, DType::bf16, hopper());
    KernelSource source = grid.front().source(hopper());
    for (const char* axis : {"head_dim", "block_r", "block_c", "causal", "alibi"}) {
      source.run_time = run_time_constants(axis, kernel, hopper());
      if (!source.constants.contains(*source.run_time.begin())) continue;  // the kernel `naive` has no tile
      const bool allowed = std::find(said.begin(), said.end(), axis) != said.end();
      try {
        const Binary binary = compiler_->compile(source);
        EXPECT_TRUE(allowed) << kernel << " reads " << axis;
        EXPECT_EQ(binary.spill_bytes, 0) << binary.key;
      } catch (const CompileError& error) {
        EXPECT_FALSE(allowed) << error.what();
      }
    }
    source.run_time = run_time_constants("all", kernel, hopper());
    EXPECT_NO_THROW(compiler_->compile(source));
  }
}

TEST_F(ConstantsCudaCompileTest, VariantsDoNotSpill) {
  const std::vector<Variant> grid = variant_grid("tuned", DType::bf16, hopper());
  for (size_t i = 0; i < 6; ++i) {
    const Binary binary = compiler_->compile(grid[i].source(hopper()));
    EXPECT_EQ(binary.spill_bytes, 0) << binary.key;
  }
}

}  // namespace
}  // namespace attn
