// Compiles kernels with hooks for a Hopper GPU. The machine needs no GPU.
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

FlashConfig config_of(const char* variant, int64_t heads, int64_t length, int64_t head_dim, bool causal) {
  FlashConfig config;
  config.variant = variant;
  config.shape = {
      .q_heads = heads, .kv_heads = heads, .q_len = length, .kv_len = length, .head_dim = head_dim, .causal = causal};
  config.dtype = config.out_dtype = DType::bf16;
  config.block_r = 64;
  config.block_c = 32;
  return config;
}

class ModifiersCudaCompileTest : public test::CudaCompilerTest {
 protected:
  /// Compiles the kernel with the hooks, and expects no warning: the compiler warns if matrix products do not overlap.
  Binary compiled(const FlashConfig& config, const AttentionHooks* hooks) const {
    const test::CapturedLog log;
    Binary binary = compiler_->compile(attention_launch(config, test::hopper(), hooks).source, {});
    EXPECT_EQ(log.text(), "") << config.variant << " " << (hooks ? hooks->name : "");
    return binary;
  }
};

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
      FlashConfig config = config_of("tuned", 32, 2048, head_dim, causal);
      for (const Modifiers& modifiers : all) {
        config.block_r = config.block_c = 0;
        choose_tile(config, test::hopper(), {.reads = modifiers.bias != "none"});
        const AttentionHooks hooks = ModifiedAttention(modifiers, config).hooks();
        EXPECT_EQ(compiled(config, &hooks).spill_bytes, 0)
            << hooks.name << " at head_dim " << head_dim << " by " << config.block_r << "x" << config.block_c;
      }
    }
  }
}

// A kernel with all score modifiers (`score_by=run_time`) may spill registers. The assembler must not warn that matrix
// products do not overlap.
TEST_F(ModifiersCudaCompileTest, FormsOfTheScoreCompileWithoutWarnings) {
  for (const char* variant : {"naive", "mma_sync", "tuned"}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      FlashConfig config = config_of(variant, 32, 2048, head_dim, false);
      config.block_r = config.block_c = 0;
      choose_tile(config, test::hopper(), {.change = ScoreChange::any});
      for (const Modifiers& modifiers :
           {Modifiers{.score_by = "run_time"}, Modifiers{.alibi = true, .score_by = "noinline"},
            Modifiers{.soft_cap = 30, .alibi = true, .bias = "hqk", .score_by = "noinline"},
            Modifiers{.soft_cap = 30.5, .alibi = true, .score_by = "noinline"}}) {
        const AttentionHooks hooks = modifier_hooks(modifiers, config.dtype);
        compiled(config, &hooks);
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
    FlashConfig config = config_of(variant, 32, 2048, 64, true);
    config.block_r = 128;
    config.block_c = 64;
    for (const Modifiers& modifiers : all) {
      for (const UserFunctions& functions : {UserFunctions{score, {}}, UserFunctions{{}, mask},
                                             UserFunctions{{}, bounded}, UserFunctions{score, mask}}) {
        AttentionHooks hooks = ModifiedAttention(modifiers, config).hooks();
        functions.add_texts(hooks);
        EXPECT_EQ(compiled(config, &hooks).spill_bytes, 0) << variant << " " << hooks.name;
      }
    }
  }
}

TEST_F(ModifiersCudaCompileTest, NamesInUsersFilesChangeNothing) {
  const FlashConfig config = config_of("mma_sync", 2, 256, 64, true);
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
    return instructions_of(compiled(config, &hooks).code);
  };
  const std::string plain = code("");
  for (const std::string& line : test::lines_with_kernels_names) {
    std::string named;
    ASSERT_NO_THROW(named = code(line)) << line;
    EXPECT_TRUE(named == plain) << line;
  }
}

TEST_F(ModifiersCudaCompileTest, ModifiersThatAreOffCostNothing) {
  for (const char* variant : {"naive", "mma_sync", "wgmma"}) {
    const FlashConfig config = config_of(variant, 2, 256, 64, true);
    const AttentionHooks off = ModifiedAttention({}, config).hooks();
    const std::string plain = instructions_of(compiled(config, nullptr).code);
    EXPECT_FALSE(plain.empty());
    EXPECT_EQ(plain, instructions_of(compiled(config, &off).code)) << variant;
  }
}

}  // namespace
}  // namespace attn
