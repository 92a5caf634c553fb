// Compiles the kernels for a Hopper GPU, and reads the kernels that were compiled ahead of time. Needs no GPU.
#include <gtest/gtest.h>

#include <string>

#include "common/backends/cuda/cubin.h"
#include "common/base/error.h"
#include "common/testing/cuda_compiler.h"
#include "common/testing/mutated_sources.h"
#include "proto5_codegen/compiled_ahead.h"
#include "proto5_codegen/tests/codegen_mutations.h"
#include "proto5_codegen/tests/codegen_run.h"

namespace attn {
namespace {

using CodegenCudaCompileTest = test::CudaCompilerTest;

TEST_F(CodegenCudaCompileTest, EveryKernelOfTheHost) {
  for (const std::string generator : {"hand", "compiler"}) {
    for (const CodegenWork work : {WORK_SCORES, WORK_SOFTMAX, WORK_VALUES, WORK_ATTENTION, WORK_MODIFIED}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const int64_t tokens : {37, 304, 4096}) {
          CodegenCase one;
          one.work = work;
          one.generator = generator;
          one.dtype = dtype;
          const bool whole = one.whole();
          one.shape = {.batch = 1,
                       .q_heads = 2,
                       .kv_heads = 2,
                       .q_len = tokens,
                       .kv_len = tokens,
                       .head_dim = work == WORK_SOFTMAX ? 0 : 128,
                       .causal = whole && tokens == 37};
          if (is_flash(one)) continue;
          const Plan plan = codegen_plan(one, test::hopper());
          if (!plan.unable.empty()) {  // of the three lengths only 37 is no multiple of 8
            EXPECT_EQ(tokens % 8, 5) << plan.unable;
            continue;
          }
          const KernelSource& source = plan.launches.at(0).source;
          const Binary binary = compiler_->compile(source);
          EXPECT_TRUE(binary.spill_bytes == 0 || generator == "compiler") << source.key();
        }
      }
    }
  }
}

// Without a GPU: the sources have the texts that mutations replace, and the mutated kernels compile to other code.
TEST(CodegenMutationsTest, TextsAreInTheSources) {
  test::expect_texts_in_sources(test::cuda_codegen_mutations(),
                                [](const test::CodegenMutation& mutation) { return test::path_of(mutation.file); });
}

TEST_F(CodegenCudaCompileTest, MutationsCompileToOtherCode) {
  for (const test::CodegenMutation& mutation : test::cuda_codegen_mutations()) {
    const KernelSource source = codegen_plan(test::case_of(mutation), test::hopper()).launches.at(0).source;
    const std::string unbroken = compiler_->compile(source).code_sha256;
    const test::MutatedSources sources(test::path_of(mutation.file), mutation.from, mutation.to);
    EXPECT_NE(compiler_->compile(source).code_sha256, unbroken) << mutation.file << ": " << mutation.from;
  }
}

TEST(CodegenCudaPlan, SmallProductsHaveSmallerTilesAndStripes) {
  struct Expected {
    CodegenWork work;
    int64_t tokens, rows, stripe;
  };
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const auto& [work, tokens, rows, stripe] :
         {Expected{WORK_SCORES, 256, 64, 1}, Expected{WORK_SCORES, 512, 64, 1}, Expected{WORK_SCORES, 1024, 128, 2},
          Expected{WORK_SCORES, 2048, 128, 4}, Expected{WORK_VALUES, 1024, 64, 1},
          Expected{WORK_VALUES, 2176, 128, 1}}) {
      SCOPED_TRACE(work_names()[work] + " " + std::string(name(dtype)) + " " + std::to_string(tokens));
      CodegenCase one = test::codegen_case(work, "hand", tokens, 128, false, 8, 1);
      one.dtype = dtype;
      const Launch launch = codegen_plan(one, test::hopper()).launches.at(0);
      const FunctionConstants& constants = launch.source.constants;
      EXPECT_EQ(constants.at("BLOCK_R"), rows);
      EXPECT_EQ(launch.threads, 2 * rows);
      EXPECT_EQ(constants.contains("STRIPE") ? constants.at("STRIPE") : 1, stripe);
      const int64_t tiles = work == WORK_SCORES ? tokens / 128 / stripe : dtype == DType::f32 ? 2 : 1;
      EXPECT_EQ(launch.grid.count(), tokens / rows * 8 * tiles);  // row tiles, heads, threadgroups side by side
    }
  }
}

// No compiler reports the numbers of registers and bytes of this machine code, so its headers give them.
TEST_F(CodegenCudaCompileTest, NumbersOfMachineCodeAreRead) {
  for (const std::string generator : {"triton", "tilelang", "halide_gpu"}) {
    const auto index = read_ahead_index(generator);
    ASSERT_TRUE(index);
    for (const AheadKernel& kernel : index->kernels) {
      const KernelSource source{.path = "proto5_codegen/generated/" + kernel.file, .entry = kernel.entry};
      const Binary binary = compiler_->compile(source);
      EXPECT_EQ(binary.source_sha256, source_sha256(source));
      EXPECT_GT(binary.registers, 8) << kernel.file;
      EXPECT_LE(binary.registers * static_cast<int64_t>(kernel.threads), 65536) << kernel.file;
      EXPECT_GE(binary.spill_bytes, 0) << kernel.file;
      EXPECT_LE(binary.threadgroup_bytes + static_cast<int64_t>(kernel.threadgroup_bytes), 227 * 1024) << kernel.file;
      EXPECT_GT(cuda_contents(binary).bytes, 500) << kernel.file;
    }
  }
}

TEST_F(CodegenCudaCompileTest, TheCubinGivesTheNumbersOfTheCompiler) {
  KernelSource source{.path = "proto5_codegen/kernels/softmax.cuda.cu",
                      .entry = "codegen_softmax",
                      .constants = {{"IN_TYPE", 2},
                                    {"RESIDENT", 1024},
                                    {"ROW_THREADS", 256},
                                    {"STREAMING", 0},
                                    {"THREADS", 256},
                                    {"UNITS", 4},
                                    {"WHOLE_UNITS", 1}}};
  const Binary compiled = compiler_->compile(source);
  Binary read;
  ASSERT_TRUE(read_resources(compiled.code, source.entry, read));
  EXPECT_EQ(read.registers, compiled.registers);
  EXPECT_EQ(read.threadgroup_bytes, compiled.threadgroup_bytes);
  EXPECT_GT(read.threadgroup_bytes, 0);
  EXPECT_FALSE(read_resources(compiled.code, "another", read));
  EXPECT_FALSE(read_resources("not a cubin", source.entry, read));
  const std::string path = "test/made.cubin";
  const KernelSource bad{.path = path, .entry = "e", .includes = {{path, "no machine code"}}};
  EXPECT_THROW(compiler_->compile(bad), CompileError);
}

}  // namespace
}  // namespace attn
