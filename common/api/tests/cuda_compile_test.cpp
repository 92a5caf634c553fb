// Compiles the kernels with the modifiers of common/api for a Hopper GPU, without a GPU. (proto7_variants and
// proto3_paged compile the modifiers that their experiments measure.)
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/attention/given_mask.h"
#include "common/attention/launch.h"
#include "common/attention/modifiers.h"
#include "common/paged/decode.h"
#include "common/paged/prefill.h"
#include "common/paged/tests/compiled_config.h"
#include "common/testing/cuda_compiler.h"

namespace attn {
namespace {

using ApiCudaCompileTest = test::CudaCompilerTest;

KernelSource source_of(const Plan& plan) {
  EXPECT_EQ(plan.unable, "");
  return plan.launches.front().source;
}

TEST_F(ApiCudaCompileTest, DecodingAndPrompts) {
  using enum DType;
  struct Combination {
    Modifiers modifiers;
    DType dtype, cache_dtype;
    int64_t q_len;
  };
  const Modifiers all{.soft_cap = 30, .window_left = 100, .alibi = true, .sinks = true, .starts = true, .tree = true};
  for (const auto& [modifiers, dtype, cache_dtype, q_len] : {Combination{{.starts = true}, bf16, int8, 1},
                                                             {all, bf16, bf16, 64},
                                                             {all, f32, f32, 4},
                                                             {{.bias = "bk"}, bf16, bf16, 1},
                                                             {{.bias = "hqk"}, f32, f32, 4}}) {
    DecodeConfig config = compiled_config(dtype, cache_dtype, q_len);
    config.shape.causal = !modifiers.tree;
    const AttentionHooks hooks = without_mask(modifier_hooks(modifiers, dtype));
    expect_clean(source_of(decode_plan(config, test::hopper(), 1024, &hooks)));
  }
  DecodeConfig config = compiled_config(bf16, bf16, 512);
  config.block_c = 0;
  Modifiers prompts = all;
  prompts.tree = false;
  const AttentionHooks hooks = without_mask(modifier_hooks(prompts, bf16));
  expect_clean(source_of(prefill_plan(config, test::hopper(), 1, 1, &hooks)));
}

TEST_F(ApiCudaCompileTest, SequencesOneAfterTheOther) {
  struct Combination {
    const char* variant;
    DType dtype;
    int64_t head_dim, ragged;
  };
  for (const auto& [variant, dtype, head_dim, ragged] : {Combination{"naive", DType::f32, 64, 2},
                                                         {"mma_sync", DType::f32, 64, 1},
                                                         {"wgmma", DType::bf16, 64, 2},
                                                         {"wgmma", DType::bf16, 128, 1},
                                                         {"wgmma", DType::bf16, 256, 2}}) {
    FlashConfig config = test::hopper_flash(variant, dtype, head_dim);
    choose_tile(config, test::hopper(), {.reads = true});
    const AttentionHooks hooks = modifier_hooks({.window_left = ragged == 2 ? 100 : -1, .ragged = ragged}, dtype);
    expect_clean(source_of(attention_plan(config, test::hopper(), &hooks)));
  }
}

TEST_F(ApiCudaCompileTest, MasksOfACaller) {
  struct Combination {
    const char* variant;
    DType dtype;
    int64_t head_dim, q_len;
    Modifiers modifiers;
  };
  const Modifiers others{.soft_cap = 30, .window_left = 100, .global_tokens = 3, .sinks = true, .starts = true};
  for (const auto& [variant, dtype, head_dim, q_len, given] : {Combination{"mma_sync", DType::f32, 128, 2048, {}},
                                                               {"wgmma", DType::bf16, 64, 2048, {}},
                                                               {"wgmma", DType::f16, 256, 64, {}},
                                                               {"wgmma", DType::bf16, 128, 2048, others}}) {
    FlashConfig config = test::hopper_flash(variant, dtype, head_dim);
    config.shape.q_len = q_len;
    Modifiers modifiers = given;
    modifiers.mask_bits = true;
    const AttentionHooks hooks = modifier_hooks(modifiers, dtype);
    choose_tile(config, test::hopper(), {.change = hooks.change, .reads = true});
    const Plan plan = attention_plan(config, test::hopper(), &hooks);
    expect_clean(source_of(plan));
    expect_clean(mask_bits_launch(plan.launches.front(), test::hopper()).source);
  }
}

}  // namespace
}  // namespace attn
