// Compiles kernels that use key/value caches for a Hopper GPU, without a GPU. The unbroken kernels must not spill
// registers.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/paged/cascade.h"
#include "common/paged/tests/compiled_config.h"
#include "common/testing/cuda_compiler.h"
#include "common/testing/mutated_sources.h"
#include "proto3_paged/problem.h"
#include "proto3_paged/tests/paged_mutations.h"

namespace attn {
namespace {

using PagedCudaCompileTest = test::CudaCompilerTest;

TEST_F(PagedCudaCompileTest, EveryTypeAndNumberOfQueries) {
  using enum DType;
  for (const auto& [dtype, cache_dtype] :
       {std::pair{f32, f32}, {f16, f16}, {bf16, bf16}, {f16, e4m3}, {f16, int8}, {bf16, e4m3}, {bf16, int8}}) {
    for (const int64_t q_len : {1, 4, 16}) {
      const Plan plan = decode_plan(compiled_config(dtype, cache_dtype, q_len), test::hopper(), 1024);
      ASSERT_FALSE(skip_reason(plan, test::hopper())) << *skip_reason(plan, test::hopper());
      // One source has two entries: the kernel that attends and the kernel that joins the parts.
      EXPECT_EQ(compiler_->compile(plan.launches[0].source, {}).spill_bytes, 0) << plan.launches[0].source.key();
    }
  }
}

TEST_F(PagedCudaCompileTest, Modifiers) {
  using enum DType;
  const Modifiers all{.soft_cap = 30, .window_left = 100, .alibi = true, .sinks = true};
  struct Combination {
    Modifiers modifiers;
    std::vector<std::pair<DType, DType>> dtypes;  // types of Q and of the cache
  };
  for (const auto& [modifiers, dtypes] : {Combination{{.alibi = true}, {{bf16, bf16}}},
                                          {{.window_left = 100}, {{bf16, bf16}, {bf16, int8}}},
                                          {all, {{f32, f32}, {f16, f16}, {bf16, bf16}, {bf16, int8}}}}) {
    for (const auto& [dtype, cache_dtype] : dtypes) {
      for (const int64_t q_len : {1, 4}) {
        const PagedConfig config{.decode = compiled_config(dtype, cache_dtype, q_len), .modifiers = modifiers};
        const AttentionHooks hooks = paged_hooks(config).value();
        const Plan plan = decode_plan(config.decode, test::hopper(), 1024, &hooks);
        ASSERT_FALSE(skip_reason(plan, test::hopper())) << *skip_reason(plan, test::hopper());
        EXPECT_EQ(compiler_->compile(plan.launches[0].source, {}).spill_bytes, 0) << plan.launches[0].source.key();
      }
    }
  }
}

TEST_F(PagedCudaCompileTest, NewTokens) {
  struct Turn {
    int64_t q_len, rotary_dim;
    RopePairing pairing;
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Turn& turn : {Turn{1, 128, RopePairing::half_split}, Turn{1, 128, RopePairing::interleaved},
                             Turn{16, 96, RopePairing::interleaved}, Turn{1, 0, RopePairing::half_split}}) {
      DecodeConfig config = compiled_config(dtype, dtype, turn.q_len);
      config.appends = true;
      config.rotary_dim = turn.rotary_dim;
      config.pairing = turn.pairing;
      DecodeConfig scaled = config;
      scaled.cache_dtype = turn.q_len == 1 ? DType::e4m3 : DType::int8;
      std::vector<Plan> plans = {decode_plan(config, test::hopper(), 1024), append_plan(config, test::hopper())};
      if (dtype != DType::f32) plans.push_back(decode_plan(scaled, test::hopper(), 1024));
      for (const Plan& plan : plans) {
        ASSERT_FALSE(skip_reason(plan, test::hopper())) << *skip_reason(plan, test::hopper());
        EXPECT_EQ(compiler_->compile(plan.launches[0].source, {}).spill_bytes, 0) << plan.launches[0].source.key();
      }
    }
  }
}

TEST_F(PagedCudaCompileTest, Cascades) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Plan plan = cascade_plan(compiled_config(dtype, dtype, 1), test::hopper(), 1024, 256);
    ASSERT_FALSE(skip_reason(plan, test::hopper())) << *skip_reason(plan, test::hopper());
    for (const Launch& launch : plan.launches) {
      EXPECT_EQ(compiler_->compile(launch.source, {}).spill_bytes, 0) << launch.source.key();
    }
  }
}

TEST_F(PagedCudaCompileTest, BrokenAppendsCompile) {
  DecodeConfig config = compiled_config(DType::bf16, DType::bf16, 3);
  config.appends = true;
  config.rotary_dim = 128;
  for (const test::AppendMutation& mutation : test::append_mutations(true)) {
    const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
    const bool fused = std::string(mutation.append) == "fused";
    const Plan plan = fused ? decode_plan(config, test::hopper(), 1024) : append_plan(config, test::hopper());
    EXPECT_NO_THROW(compiler_->compile(plan.launches.front().source, {})) << mutation.what;
  }
}

// This test needs neither a GPU nor NVRTC, which other tests of broken CUDA kernels need.
TEST(PagedMutationsTest, TextsAreInTheSources) {
  test::expect_texts_in_sources(test::decode_mutations(true),
                                [](const test::DecodeMutation&) { return test::decode_file(true); });
}

TEST_F(PagedCudaCompileTest, BrokenKernelsCompileToOtherCode) {
  const auto code = [&] {
    DecodeConfig config = compiled_config(DType::bf16, DType::bf16, 2);
    config.join_last = true;
    return compiler_->compile(decode_plan(config, test::hopper(), 1024).launches.front().source, {}).code_sha256;
  };
  const std::string unbroken = code();
  for (const test::DecodeMutation& mutation : test::decode_mutations(true)) {
    const test::MutatedSources mutated(test::decode_file(true), mutation.from, mutation.to);
    EXPECT_NE(code(), unbroken) << mutation.what;
  }
}

}  // namespace
}  // namespace attn
