// Compiles kernels that use key/value caches for a Hopper GPU, without a GPU. The unbroken kernels must not spill
// registers.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
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

class PagedCudaCompileTest : public test::CudaCompilerTest {
 protected:
  /// Expects that the device can run the plan, and that its first `launches` kernels do not spill.
  void expect_no_spills(const Plan& plan, size_t launches = 1) const {
    ASSERT_EQ(skip_reason(plan, test::hopper()).value_or(""), "");
    for (const Launch& launch : std::span(plan.launches).first(launches)) {
      EXPECT_EQ(compiler_->compile(launch.source, {}).spill_bytes, 0) << launch.source.key();
    }
  }
};

DecodeConfig compiled_prefill(int64_t head_dim, int64_t page_size) {
  return {.shape = {.batch = 8,
                    .q_heads = 32,
                    .kv_heads = 8,
                    .q_len = 512,
                    .kv_len = 4096,
                    .head_dim = head_dim,
                    .causal = true},
          .dtype = DType::bf16,
          .cache_dtype = DType::bf16,
          .out_dtype = DType::bf16,
          .page_size = page_size,
          .block_c = 0};
}

DecodeConfig appending(DecodeConfig config, int64_t rotary_dim) {
  config.appends = true;
  config.rotary_dim = rotary_dim;
  return config;
}

using enum DType;

TEST_F(PagedCudaCompileTest, EveryTypeAndNumberOfQueries) {
  for (const auto& [dtype, cache_dtype] :
       {std::pair{f32, f32}, {f16, f16}, {bf16, bf16}, {f16, e4m3}, {f16, int8}, {bf16, e4m3}, {bf16, int8}}) {
    for (const int64_t q_len : {1, 4, 16}) {
      // One source has two entries: the kernel that attends and the kernel that joins the parts.
      expect_no_spills(decode_plan(compiled_config(dtype, cache_dtype, q_len), test::hopper(), 1024));
    }
  }
}

TEST_F(PagedCudaCompileTest, PrefillOnEveryPage) {
  for (const int64_t page_size : {0, 1, 8, 16, 64, 256}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      const DecodeConfig config = compiled_prefill(head_dim, page_size);
      expect_no_spills(prefill_plan(config, test::hopper(), 1, 1));
      expect_no_spills(prefill_plan(appending(config, head_dim), test::hopper(), 1, 1));
    }
  }
}

TEST_F(PagedCudaCompileTest, ModifiersOfEveryType) {
  const Modifiers all{.soft_cap = 30, .window_left = 100, .alibi = true, .sinks = true};
  struct Combination {
    Modifiers modifiers;
    std::vector<std::pair<DType, DType>> dtypes;  // types of Q and of the cache
    bool prefills = true;
  };
  for (const auto& [modifiers, dtypes, prefills] : {Combination{{.alibi = true}, {{bf16, bf16}}},
                                                    {{.window_left = 100}, {{bf16, bf16}, {bf16, int8}}, false},
                                                    {all, {{f32, f32}, {f16, f16}, {bf16, bf16}, {bf16, int8}}}}) {
    const AttentionHooks hooks =
        paged_hooks({.decode = compiled_config(bf16, bf16, 1), .modifiers = modifiers}).value();
    for (const auto& [dtype, cache_dtype] : dtypes) {
      for (const int64_t q_len : {1, 4}) {
        expect_no_spills(decode_plan(compiled_config(dtype, cache_dtype, q_len), test::hopper(), 1024, &hooks));
      }
    }
    for (const int64_t head_dim : {64, 128}) {
      if (prefills) expect_no_spills(prefill_plan(compiled_prefill(head_dim, 16), test::hopper(), 1, 1, &hooks));
    }
  }
}

TEST_F(PagedCudaCompileTest, NewTokens) {
  using enum RopePairing;
  for (const DType dtype : {f32, f16, bf16}) {
    for (const auto& [q_len, rotary_dim, pairing] :
         {std::tuple{1, 128, half_split}, {1, 128, interleaved}, {16, 96, interleaved}, {1, 0, half_split}}) {
      DecodeConfig config = appending(compiled_config(dtype, dtype, q_len), rotary_dim);
      config.pairing = pairing;
      expect_no_spills(decode_plan(config, test::hopper(), 1024));
      expect_no_spills(append_plan(config, test::hopper()));
      config.cache_dtype = q_len == 1 ? e4m3 : int8;
      if (dtype != f32) expect_no_spills(decode_plan(config, test::hopper(), 1024));
    }
  }
}

TEST_F(PagedCudaCompileTest, Cascades) {
  for (const DType dtype : {f32, bf16}) {
    const Plan plan = cascade_plan(compiled_config(dtype, dtype, 1), test::hopper(), 1024, 256);
    expect_no_spills(plan, plan.launches.size());
  }
}

TEST_F(PagedCudaCompileTest, BrokenKernelsCompileToOtherCode) {
  const DecodeConfig appends = appending(compiled_config(bf16, bf16, 2), 128);
  DecodeConfig decodes = compiled_config(bf16, bf16, 2), wide = compiled_config(bf16, bf16, 16);
  decodes.join_last = wide.join_last = wide.shape.causal = true;
  std::map<std::string, std::string> unbroken;  // the code of a source, by its key
  const auto expect_other_code = [&](const test::PagedMutation& mutation, const std::function<Plan()>& plan) {
    const KernelSource source = plan().launches.front().source;
    const auto code = [&] { return compiler_->compile(source, {}).code_sha256; };
    std::string& known = unbroken[source.key()];
    if (known.empty()) known = code();
    const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
    EXPECT_NE(code(), known) << mutation.what;
  };
  for (const test::PagedMutation& mutation : test::append_mutations(true)) {
    expect_other_code(mutation, [&] {
      return mutation.axes == "append=fused" ? decode_plan(appends, test::hopper(), 1024)
                                             : append_plan(appends, test::hopper());
    });
  }
  for (const test::PagedMutation& mutation : test::decode_mutations(true)) {
    expect_other_code(mutation, [&] { return decode_plan(decodes, test::hopper(), 1024); });
  }
  for (const test::PagedMutation& mutation : test::wide_mutations()) {
    expect_other_code(mutation, [&] {
      if (mutation.axes.starts_with("append")) return decode_plan(appending(wide, 128), test::hopper(), 1024);
      return decode_plan(wide, test::hopper(), 1024);
    });
  }
  DecodeConfig turns = wide;
  turns.shape.q_len = 64 * turns.shape.kv_heads / turns.shape.q_heads;
  for (const test::PagedMutation& mutation : test::turn_mutations()) {
    expect_other_code(mutation, [&] { return decode_plan(turns, test::hopper(), 1024); });
  }
  wide.cache_dtype = e4m3;
  for (const test::PagedMutation& mutation : test::wide_scale_mutations()) {
    expect_other_code(mutation, [&] { return decode_plan(wide, test::hopper(), 1024); });
  }
  for (const test::PagedMutation& mutation : test::prefill_mutations(true)) {
    const int64_t head_dim = mutation.axes.empty() ? 64 : 128;
    expect_other_code(mutation, [=] {
      return prefill_plan(appending(compiled_prefill(head_dim, 16), head_dim), test::hopper(), 1, 1);
    });
  }
}

// This test needs neither a GPU nor NVRTC, which other tests of broken CUDA kernels need.
TEST(PagedMutationsTest, TextsAreInTheSources) {
  for (const bool cuda : {false, true}) {
    for (const auto& list :
         {test::decode_mutations(cuda), test::wide_mutations(), test::turn_mutations(), test::append_mutations(cuda),
          test::prefill_mutations(cuda), test::cascade_mutations(cuda), test::scale_mutations(cuda),
          test::wide_scale_mutations(), test::expansion_mutations(cuda)}) {
      test::expect_texts_in_sources(list, [](const test::PagedMutation& mutation) { return mutation.file; });
    }
  }
}

}  // namespace
}  // namespace attn
