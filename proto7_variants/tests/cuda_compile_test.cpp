// Compiles kernels with hooks for a Hopper GPU. The machine needs no GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/attention/launch.h"
#include "common/attention/mask_lists.h"
#include "common/attention/modifiers.h"
#include "common/backends/cuda/cubin.h"
#include "common/cases/modified_attention.h"
#include "common/cases/user_functions.h"
#include "common/testing/captured_log.h"
#include "common/testing/cuda_compiler.h"
#include "common/testing/user_texts.h"
#include "proto7_variants/functions.h"

namespace attn {
namespace {

using ModifiersCudaCompileTest = test::CudaCompilerTest;

// The compiler warns if matrix products do not overlap.
TEST_F(ModifiersCudaCompileTest, NeitherSpillNorSerialise) {
  std::vector<Modifiers> all(12);
  all[0].alibi = true;
  all[1].soft_cap = 30;
  all[2].window_left = 1024;
  all[3].sinks = true;
  all[4] = {.soft_cap = 30, .window_left = 100, .alibi = true, .sinks = true};
  all[5] = {.window_left = 1024, .global_tokens = 64};
  all[6] = {.soft_cap = 30, .window_left = 100, .global_tokens = 64, .alibi = true, .sinks = true, .block_sparse = 25};
  all[7] = {.window_left = 1024, .window_by_mask = true, .lists = false};
  all[8].bias = "k";
  all[10].soft_cap = 30.5;
  all[11] = {.window_left = 1024, .starts = true};
  for (const int64_t head_dim : {64, 128, 256}) {
    all[9].rotary = {.by = "query", .config = {.head_dim = head_dim, .rotary_dim = head_dim}};
    for (const bool causal : {false, true}) {
      FlashConfig config;
      config.variant = "tuned";
      config.shape = {
          .q_heads = 32, .kv_heads = 32, .q_len = 2048, .kv_len = 2048, .head_dim = head_dim, .causal = causal};
      config.dtype = config.out_dtype = DType::bf16;
      for (const Modifiers& modifiers : all) {
        config.block_r = config.block_c = 0;
        choose_tile(config, test::hopper(), {.reads = modifiers.bias != "none"});
        const AttentionHooks hooks = ModifiedAttention(modifiers, config).hooks();
        const std::string what = fmt::format("{} at head_dim {} by {}x{}, causal {}", hooks.name, head_dim,
                                             config.block_r, config.block_c, causal);
        const test::CapturedLog log;
        const Binary binary = compiler_->compile(attention_launch(config, test::hopper(), &hooks).source, {});
        EXPECT_EQ(binary.spill_bytes, 0) << what;
        EXPECT_EQ(log.text(), "") << what;
      }
    }
  }
}

// A kernel with all score modifiers (`score_by=run_time`) may spill registers. The assembler must not warn that matrix
// products do not overlap.
TEST_F(ModifiersCudaCompileTest, FormsOfTheScoreCompileWithoutWarnings) {
  for (const char* variant : {"naive", "mma_sync", "tuned"}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      FlashConfig config;
      config.variant = variant;
      config.shape = {.q_heads = 32, .kv_heads = 32, .q_len = 2048, .kv_len = 2048, .head_dim = head_dim};
      config.dtype = config.out_dtype = DType::bf16;
      choose_tile(config, test::hopper(), {.change = ScoreChange::any});
      for (const Modifiers& modifiers :
           {Modifiers{.score_by = "run_time"}, Modifiers{.alibi = true, .score_by = "noinline"},
            Modifiers{.soft_cap = 30, .alibi = true, .bias = "hqk", .score_by = "noinline"},
            Modifiers{.soft_cap = 30.5, .alibi = true, .score_by = "noinline"}}) {
        const AttentionHooks hooks = modifier_hooks(modifiers, config.dtype);
        const test::CapturedLog log;
        compiler_->compile(attention_launch(config, test::hopper(), &hooks).source, {});
        EXPECT_EQ(log.text(), "") << variant << " " << modifiers.score_by << " at head_dim " << head_dim;
      }
    }
  }
}

// Compiles a user's functions together with modifiers that change scores by element and by tile.
TEST_F(ModifiersCudaCompileTest, FunctionsOfTheUsersCompileWithModifiers) {
  const UserFunction score{
      .name = "score.cpp",
      .text = "float score(float s, int q, int k) { return fmaxf(s, -8.0f) - 0.01f * fabsf(q - k); }",
      .guarded = true};
  const UserFunction mask{.name = "mask.cpp",
                          .text = "bool visible(int q, int k, const MaskContext& c) { return (q + k) % c.q_heads; }",
                          .kind = FunctionKind::mask,
                          .guarded = true};
  UserFunction bounded = mask;
  bounded.text += "KeyRange keys(int q) { return {q - 100, q + 1}; }";
  for (const UserFunction& function : {score, mask, bounded}) {
    EXPECT_NO_THROW(
        compiler_->compile(function_oracle(test::hopper(), function, function.kind == FunctionKind::score), {}));
  }
  std::vector<Modifiers> all(5);
  all[1].soft_cap = 30;
  all[2] = {.soft_cap = 30, .window_left = 100, .alibi = true};
  all[3] = {.soft_cap = 30, .alibi = true, .bias = "k"};
  all[4] = {.window_left = 100, .starts = true};
  for (const char* variant : {"naive", "mma_sync", "wgmma"}) {
    FlashConfig config;
    config.variant = variant;
    config.shape = {.q_heads = 32, .kv_heads = 32, .q_len = 2048, .kv_len = 2048, .head_dim = 64, .causal = true};
    config.dtype = config.out_dtype = DType::bf16;
    config.block_r = 128;
    config.block_c = 64;
    for (const Modifiers& modifiers : all) {
      for (const UserFunctions& functions : {UserFunctions{score, {}}, UserFunctions{{}, mask},
                                             UserFunctions{{}, bounded}, UserFunctions{score, mask}}) {
        AttentionHooks hooks = ModifiedAttention(modifiers, config).hooks();
        functions.add_texts(hooks);
        const test::CapturedLog log;
        const Binary binary = compiler_->compile(attention_launch(config, test::hopper(), &hooks).source, {});
        EXPECT_EQ(binary.spill_bytes, 0) << variant << " " << hooks.name;
        EXPECT_EQ(log.text(), "") << variant << " " << hooks.name;
      }
    }
  }
}

TEST_F(ModifiersCudaCompileTest, NamesInUsersFilesChangeNothing) {
  FlashConfig config;
  config.variant = "mma_sync";
  config.shape = {.q_heads = 2, .kv_heads = 2, .q_len = 256, .kv_len = 256, .head_dim = 64, .causal = true};
  config.dtype = DType::bf16;
  config.block_r = 64;
  config.block_c = 32;
  const auto code = [&](const std::string& after) {
    const UserFunctions functions{
        UserFunction{.name = "score.cpp",
                     .text = "float score(float s, int q, int k) { return s - fabsf(q - k); }\n" + after,
                     .guarded = true},
        UserFunction{.name = "mask.cpp",
                     .text = "bool visible(int q, int k) { return (q + k) % 3; }\n" + after,
                     .kind = FunctionKind::mask,
                     .guarded = true}};
    AttentionHooks hooks = ModifiedAttention({.soft_cap = 30}, config).hooks();
    functions.add_texts(hooks);
    const Launch launch = attention_launch(config, test::hopper(), &hooks);
    compiler_->compile(mask_launch(config, test::hopper(), launch, ListScope::head).source, {});
    return instructions_of(compiler_->compile(launch.source, {}).code);
  };
  const test::CapturedLog log;
  const std::string plain = code("");
  for (const std::string& line : test::lines_with_kernels_names) {
    std::string named;
    ASSERT_NO_THROW(named = code(line)) << line;
    EXPECT_TRUE(named == plain) << line;
  }
  EXPECT_EQ(log.text(), "");
}

TEST_F(ModifiersCudaCompileTest, ModifiersThatAreOffCostNothing) {
  for (const char* variant : {"naive", "mma_sync", "wgmma"}) {
    FlashConfig config;
    config.variant = variant;
    config.shape = {.q_heads = 2, .kv_heads = 2, .q_len = 256, .kv_len = 256, .head_dim = 64, .causal = true};
    config.dtype = DType::bf16;
    config.block_r = 64;
    config.block_c = 32;
    const AttentionHooks off = ModifiedAttention({}, config).hooks();
    const auto code = [&](const AttentionHooks* hooks) {
      return instructions_of(compiler_->compile(attention_launch(config, test::hopper(), hooks).source, {}).code);
    };
    EXPECT_FALSE(code(nullptr).empty());
    EXPECT_EQ(code(nullptr), code(&off)) << variant;
  }
}

}  // namespace
}  // namespace attn
