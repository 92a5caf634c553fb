// Most tests check that attention with modifiers agrees with the oracle. Other tests check that modifiers that are off
// cost nothing, and that the oracle's checks fail if a hook is broken on purpose.
#include "common/attention/modifiers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/cases/modified_attention.h"
#include "common/testing/mutated_sources.h"
#include "common/testing/some.h"
#include "common/testing/tested_device.h"
#include "common/testing/user_texts.h"
#include "proto7_variants/functions.h"
#include "proto7_variants/problem.h"

namespace attn {
namespace {

using test::device;
using test::on_cuda;
using test::OnDevice;
using test::pipelines;

/// One modifier, with the windows that it needs, and with values that already have an effect in the short sequences of
/// the tests.
struct Switch {
  const char* name;
  std::function<void(Modifiers&)> turn_on;
};

std::vector<Switch> switches() {
  return {{"alibi", [](Modifiers& m) { m.alibi = true; }},
          {"soft_cap_of_halves", [](Modifiers& m) { m.soft_cap = 2.5; }},
          {"soft_cap", [](Modifiers& m) { m.soft_cap = 2; }},
          {"bias", [](Modifiers& m) { m.bias = "bhqk"; }},
          {"sinks", [](Modifiers& m) { m.sinks = true; }},
          {"window_left", [](Modifiers& m) { m.window_left = 9; }},
          {"window_right", [](Modifiers& m) { m.window_right = 4; }},
          {"prefix", [](Modifiers& m) { m.prefix = 21; }},
          {"documents", [](Modifiers& m) { m.documents = 12; }},
          {"lengths", [](Modifiers& m) { m.lengths = true; }},
          {"starts", [](Modifiers& m) { m.starts = true; }},
          {"global_tokens",
           [](Modifiers& m) {
             m.window_left = 9;
             m.window_right = 4;
             m.global_tokens = 16;
           }},
          {"block_sparse", [](Modifiers& m) { m.block_sparse = 40; }},
          {"window_by_mask",
           [](Modifiers& m) {
             m.window_left = 9;
             m.window_by_mask = true;
           }},
          {"no_lists",
           [](Modifiers& m) {
             m.block_sparse = 40;
             m.lists = false;
           }},
          {"rope", [](Modifiers& m) { m.rotary = {.by = "query", .config = {.head_dim = 40, .rotary_dim = 24}}; }}};
}

/// The modifiers of one switch, or of all switches.
Modifiers switched(const std::string& name) {
  Modifiers modifiers;
  for (const Switch& one : switches()) {
    if (name == one.name || name == "all") one.turn_on(modifiers);
  }
  return modifiers;
}

std::vector<std::string> kernels() {
  const std::vector<std::string> on_cpu = {"naive", "tiled_scalar", "tiled_vector", "tuned", "tuned_bf16"};
  return on_cuda ? std::vector<std::string>{"naive", "mma_sync", "mma_sync_bf16", "wgmma_bf16"} : on_cpu;
}

FlashConfig small_config(const std::string& name) {
  FlashConfig config;
  config.variant = name.substr(0, name.find("_bf16"));
  config.dtype = name.ends_with("_bf16") ? DType::bf16 : DType::f32;
  // Q and K have three blocks of 128 positions.
  config.shape = {.batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 270, .kv_len = 283, .head_dim = 40};
  config.block_r = on_cuda ? 64 : 32;
  config.block_c = 16;
  return config;
}

/// A score function that depends on every argument, and that makes a score of -infinity finite.
UserFunction user_score() {
  return {.name = "score.cpp",
          .text =
              "float score(float s, int q, int k, const ScoreContext& c) {\n"
              "  return fmaxf(s, -8.0f) + 0.125f * static_cast<float>((7 * q + 3 * k + 11 * c.head) % 17);\n"
              "}\n",
          .guarded = true};
}
UserFunction user_mask(bool bounded) {
  const std::string keys = "KeyRange keys(int q) { return {q - 30, q + 40}; }\n";
  return {.name = "mask.cpp",
          .text = "bool visible(int q, int k, const MaskContext& c) { return (q + 2 * k + c.head) % 3 != 0; }\n" +
                  (bounded ? keys : ""),
          .kind = FunctionKind::mask,
          .guarded = true};
}

Check check_of(const FlashConfig& config, const Modifiers& modifiers, PipelineCache& cache = pipelines(),
               const UserFunctions& functions = {}) {
  const VariantsConfig variants{.flash = config, .modifiers = modifiers, .functions = functions};
  VariantsPools pools;
  VariantsProblem problem(device(), cache, variants_inputs(device(), 7, "", variants, pools), variants,
                          variants_plan(variants, device().info()));
  return test::launched(problem);
}

class KernelModifiers : public OnDevice<testing::TestWithParam<std::string>> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    config_ = small_config(GetParam());
    if (const auto reason = FlashOperation::of(device().info()).skip_reason(config_, device().info())) {
      GTEST_SKIP() << *reason;
    }
  }
  void expect_right(const Modifiers& modifiers, const std::string& what) {
    const AttentionShape& s = config_.shape;
    const Check check = check_of(config_, modifiers);
    EXPECT_TRUE(check.ok) << what << ", q_len " << s.q_len << ", kv_len " << s.kv_len << ", causal " << s.causal << ": "
                          << check.worst;
  }

  FlashConfig config_;
};
INSTANTIATE_TEST_SUITE_P(All, KernelModifiers, testing::ValuesIn(kernels()), [](const auto& i) { return i.param; });

TEST_P(KernelModifiers, EachIsRightOnOddShapes) {
  test::Some some(17);
  for (const auto& [q_len, kv_len] : {std::pair{70, 83}, {1, 1}, {33, 20}, {1, 130}, {270, 283}}) {
    for (const bool causal : {false, true}) {
      config_.shape.q_len = q_len;
      config_.shape.kv_len = kv_len;
      config_.shape.causal = causal;
      for (const Switch& one : switches()) {
        if (causal && one.name == std::string("prefix")) continue;
        if (some.skips()) continue;
        expect_right(switched(one.name), one.name);
      }
    }
  }
}

TEST_P(KernelModifiers, AllAtOnce) {
  Modifiers modifiers = switched("all");
  expect_right(modifiers, "all");
  modifiers.lists = true;
  expect_right(modifiers, "all, with lists");
  config_.layout = Layout::bshd;
  config_.shape.q_len = 83;
  config_.shape.kv_len = 70;  // the first queries see no key
  expect_right(modifiers, "all, bshd");
  modifiers.prefix = 0;
  config_.shape.causal = true;
  expect_right(modifiers, "all but the prefix, causal");
}

TEST_P(KernelModifiers, ALaunchOrTheKernelRotatesRows) {
  test::Some some(11);
  for (const auto& [q_len, kv_len] : {std::pair{70, 83}, {33, 20}, {65, 65}}) {
    for (const RopePairing pairing : {RopePairing::half_split, RopePairing::interleaved}) {
      for (const char* by : {"before", "query", "kernel"}) {
        if (some.skips()) continue;
        config_.shape.q_len = q_len;
        config_.shape.kv_len = kv_len;
        config_.layout = pairing == RopePairing::interleaved ? Layout::bshd : Layout::bhsd;
        Modifiers modifiers;
        modifiers.rotary = {.by = by,
                            .config = {.head_dim = 40,
                                       .rotary_dim = q_len == 70 ? 40 : 16,
                                       .pairing = pairing,
                                       .scaling = RopeYarn{.factor = 4, .original_length = 64}},
                            .in_place = by == std::string("before"),
                            .position = 1000};
        const AttentionHooks hooks = modifier_hooks(modifiers, config_.dtype);
        const DeviceInfo& info = device().info();
        if (FlashOperation::of(info).skip_reason(config_, info, &hooks)) continue;
        expect_right(modifiers, fmt::format("rope={} pairing {}", by, static_cast<int>(pairing)));
      }
    }
  }
}

// Returns sets of modifiers. The first four sets have only score modifiers.
std::vector<Modifiers> of_the_score() {
  std::vector<Modifiers> all(6);
  all[0].alibi = true;
  all[1].soft_cap = 2;
  all[2].bias = "bhqk";
  all[3] = {.soft_cap = 2, .alibi = true, .bias = "hqk"};
  all[4] = {.soft_cap = 2, .window_left = 9, .alibi = true, .sinks = true, .bias = "hq", .block_sparse = 40};
  return all;
}

TEST_P(KernelModifiers, EveryFormOfTheScoreIsRight) {
  test::Some some(13);
  for (const auto& [q_len, kv_len] : {std::pair{70, 83}, {1, 1}, {33, 20}, {270, 283}}) {
    for (Modifiers modifiers : of_the_score()) {
      for (const char* form : {"run_time", "noinline"}) {
        if (some.skips()) continue;
        modifiers.score_by = form;
        config_.shape.q_len = q_len;
        config_.shape.kv_len = kv_len;
        config_.shape.causal = q_len == 70;
        if (modifiers.score_rules() > 0 || modifiers.score_by == "run_time") {
          expect_right(modifiers, fmt::format("{} {}", form, ModifiedAttention(modifiers, config_).hooks().name));
        }
      }
    }
  }
}

// With `score_by=run_time`, one kernel serves all score modifiers. With constants, each set of score modifiers makes
// another kernel.
TEST_P(KernelModifiers, OneKernelServesAllAtRunTime) {
  const DeviceInfo& info = device().info();
  const auto source = [&](Modifiers modifiers, const char* form) {
    modifiers.score_by = form;
    const AttentionHooks hooks = modifier_hooks(modifiers, config_.dtype);
    return attention_launch(config_, info, &hooks).source;
  };
  const std::vector<Modifiers> all = of_the_score();
  for (const Modifiers& one : std::span(all).first(4)) {
    EXPECT_EQ(source(one, "run_time"), source({}, "run_time"));
    EXPECT_NE(source(one, "constant"), source({}, "constant"));
    EXPECT_NE(pipelines().get(source(one, "noinline")).binary.code_sha256,
              pipelines().get(source(one, "constant")).binary.code_sha256);
  }
}

TEST_P(KernelModifiers, FunctionsOfTheUsersCompose) {
  const auto expect_right = [&](const Modifiers& modifiers, const UserFunctions& functions) {
    const Check check = check_of(config_, modifiers, pipelines(), functions);
    EXPECT_TRUE(check.ok) << ModifiedAttention(modifiers, config_).hooks().name << ": " << check.worst;
  };
  const UserFunctions both{user_score(), user_mask(true)}, unbounded_mask{{}, user_mask(false)};
  test::Some few(3);
  for (const Modifiers& modifiers : {Modifiers{}, switched("all")}) {
    for (const UserFunctions& functions :
         {UserFunctions{user_score(), {}}, unbounded_mask, UserFunctions{{}, user_mask(true)}, both}) {
      if (!few.skips()) expect_right(modifiers, functions);
    }
  }
  test::Some some(7);
  for (const Switch& one : switches()) {
    for (const UserFunctions& functions : {both, unbounded_mask}) {
      if (!some.skips()) expect_right(switched(one.name), functions);
    }
  }
}

TEST_P(KernelModifiers, NamesInUsersFilesChangeNothing) {
  UserFunctions named{user_score(), user_mask(true)};
  // A helper of the score function has the name and the parameters of a hook.
  named.score->text = "bool visible(int q, int k, const ScoreContext& c) { return q + k < c.q_len; }\n" +
                      named.score->text +
                      "float slope(int q, int k, const ScoreContext& c) { return visible(q, k, c) ? 1 : 0; }\n";
  for (const std::string& line : test::lines_with_kernels_names) {
    named.score->text += line + "\n";
    named.mask->text += line + "\n";
  }
  for (const auto* function : {&*named.score, &*named.mask}) {
    EXPECT_NO_THROW(require_compiles(device(), *function));
  }
  const Check check = check_of(config_, switched("all"), pipelines(), named);
  EXPECT_TRUE(check.ok) << check.worst;
}

// With all constants off, the hooks leave the kernel's machine code as it is without hooks.
TEST_P(KernelModifiers, ModifiersThatAreOffCostNothing) {
  if (on_cuda) GTEST_SKIP() << "cuda_compile_test.cpp has this test for CUDA";
  if (*ATTN_SANITIZE) GTEST_SKIP() << "machine code for a sanitizer has line numbers of the source text";
  const AttentionHooks off = ModifiedAttention({}, config_).hooks();
  const DeviceInfo& info = device().info();
  const Binary plain = pipelines().get(attention_launch(config_, info, nullptr).source).binary;
  const Binary hooked = pipelines().get(attention_launch(config_, info, &off).source).binary;
  EXPECT_NE(plain.key, hooked.key);
  EXPECT_EQ(plain.code_sha256, hooked.code_sha256);
}

class ModifiersTest : public OnDevice<testing::Test> {};

TEST_F(ModifiersTest, EveryPairComposes) {
  const FlashConfig config = small_config(on_cuda && device().info().has("wgmma") ? "tuned_bf16" : "tuned");
  for (size_t i = 0; i < switches().size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      Modifiers modifiers = switched(switches()[i].name);
      switches()[j].turn_on(modifiers);
      const Check check = check_of(config, modifiers);
      EXPECT_TRUE(check.ok) << switches()[i].name << " and " << switches()[j].name << ": " << check.worst;
    }
  }
}

TEST_F(ModifiersTest, BiasIsSharedAlongTheAxesItDoesNotName) {
  const FlashConfig config = small_config("tuned");
  for (const char* axes : {"k", "bk", "qk", "hqk", "bhqk"}) {
    Modifiers modifiers;
    modifiers.bias = axes;
    const Check check = check_of(config, modifiers);
    EXPECT_TRUE(check.ok) << axes << ": " << check.worst;
  }
}

TEST(SoftCaps, OfWholeNumbersAreAFunctionConstant) {
  const FlashConfig config = small_config("tuned");
  const AttentionHooks whole = modifier_hooks({.soft_cap = 30}, config.dtype);
  EXPECT_EQ(whole.constants.at("SOFT_CAP"), 30);
  EXPECT_EQ(whole.text, "#include \"common/attention/kernels/modifiers/score.h\"\n");
  const AttentionHooks halves = modifier_hooks({.soft_cap = 30.5}, config.dtype);
  EXPECT_FALSE(halves.constants.contains("SOFT_CAP"));
  EXPECT_NE(halves.includes, modifier_hooks({.soft_cap = 30.25}, config.dtype).includes);
  const AttentionHooks off = modifier_hooks({}, config.dtype);
  EXPECT_EQ(off.constants.at("SOFT_CAP"), 0);
  EXPECT_EQ(off.includes, whole.includes);
}

TEST(AlibiSlopes, OfPowersOfTwoAndOfOtherCounts) {
  EXPECT_EQ(alibi_slopes(1), (std::vector{std::exp2(-8)}));
  EXPECT_EQ(alibi_slopes(4), (std::vector{1 / 4., 1 / 16., 1 / 64., 1 / 256.}));
  EXPECT_EQ(alibi_slopes(6), (std::vector{1 / 4., 1 / 16., 1 / 64., 1 / 256., 1 / 2., 1 / 8.}));
}

// This project subtracts distance * slope from a score, as the paper on ALiBi does. Some other kernels add distance *
// slope.
TEST(AlibiSlopes, FarKeysLoseWeight) {
  FlashConfig config;
  config.shape = {.q_heads = 2, .kv_heads = 2, .q_len = 5, .kv_len = 5};
  Modifiers modifiers;
  modifiers.alibi = true;
  std::vector<double> scores(5, 0.0);
  ModifiedAttention(modifiers, config).hooks().reference(scores, 0, 1, 4);
  EXPECT_EQ(scores, (std::vector<double>{-4 / 256., -3 / 256., -2 / 256., -1 / 256., 0}));
}

TEST(VisiblePairs, ArePairsThatTheRulesLeave) {
  FlashConfig config;
  config.shape = {.batch = 3, .q_heads = 2, .kv_heads = 2, .q_len = 4, .kv_len = 6};
  Modifiers modifiers;
  EXPECT_EQ(ModifiedAttention(modifiers, config).visible_pairs(), 3 * 2 * 4 * 6);
  modifiers.window_left = 1;
  modifiers.window_right = 0;
  EXPECT_EQ(ModifiedAttention(modifiers, config).visible_pairs(), 3 * 2 * 4 * 2);
  modifiers = {};
  modifiers.prefix = 5;
  EXPECT_EQ(ModifiedAttention(modifiers, config).visible_pairs(), 3 * 2 * (5 + 5 + 5 + 6));
}

TEST(VisiblePairs, OfMasksAreCountedOneByOne) {
  FlashConfig config;
  config.shape = {.batch = 2, .q_heads = 2, .kv_heads = 1, .q_len = 300, .kv_len = 420};
  for (const bool causal : {false, true}) {
    for (const int64_t global : {0, 3, 150, 500}) {
      for (const int64_t sparse : {0, 30}) {
        for (const auto& [left, right] : {std::pair{9, 4}, {-1, 0}, {200, -1}, {0, 130}}) {
          Modifiers modifiers{.window_left = left, .window_right = right, .lengths = true, .starts = true};
          modifiers.documents = causal ? 70 : 0;
          modifiers.global_tokens = global;
          modifiers.block_sparse = sparse;
          config.shape.causal = causal;
          const ModifiedAttention attention(modifiers, config);
          const ScoreFunction reference = attention.hooks().reference;
          double pairs = 0;
          for (int64_t batch = 0; batch < 2; ++batch) {
            for (int64_t q = 0; q < config.shape.q_len; ++q) {
              std::vector<double> scores(static_cast<size_t>(config.shape.keys_seen(q)), 0.0);
              reference(scores, batch, 0, q);
              pairs += 2 * static_cast<double>(std::ranges::count(scores, 0.0));
            }
          }
          EXPECT_EQ(attention.visible_pairs(), pairs) << "causal " << causal << " global " << global << " sparse "
                                                      << sparse << " window " << left << " " << right;
        }
      }
    }
  }
}

// The time to count the pairs does not grow with the number of sequences.
TEST(VisiblePairs, OfManySequencesAreCountedAtOnce) {
  FlashConfig config;
  config.shape = {.batch = 4096, .q_heads = 1024, .kv_heads = 1024, .q_len = 1 << 20, .kv_len = 1 << 20};
  Modifiers modifiers{.window_left = 0, .window_right = 0, .lengths = true};
  modifiers.documents = 256;
  const double own_keys = 4096. * 1024 * (1 << 20), pairs = ModifiedAttention(modifiers, config).visible_pairs();
  EXPECT_LT(pairs, own_keys);
  EXPECT_GT(pairs, own_keys / 2);
  modifiers.lengths = false;
  EXPECT_EQ(ModifiedAttention(modifiers, config).visible_pairs(), own_keys);
}

// The mask leaves the requested share of the blocks off the diagonal, and all blocks on the diagonal.
TEST(VisiblePairs, OfSparseBlocksAreTheRequestedShare) {
  FlashConfig config;
  config.shape = {.q_len = 16384, .kv_len = 16384};
  Modifiers modifiers;
  modifiers.block_sparse = 25;
  const double blocks = ModifiedAttention(modifiers, config).visible_pairs() / (128 * 128);
  EXPECT_NEAR((blocks - 128) / (128 * 127), 0.25, 0.02);
}

// ---- mutations: a hook or a kernel is broken on purpose, and the check must fail

struct ModifierMutation {
  const char *modifier, *what;  // `modifier`: for switched()
  std::string file, from, to;
  const char* kernel = "tuned";
  const char* form = "";  // `score_by` of a soft cap, ALiBi and a bias at once
  bool users = false;     // with functions of the user
};
void PrintTo(const ModifierMutation& mutation, std::ostream* out) { *out << mutation.what; }

const std::string hooks_folder = "common/attention/kernels/modifiers/", kernels_folder = "common/attention/kernels/";
const std::string score_text = hooks_folder + "score.h";
const std::string keys_text = hooks_folder + "keys.h";
const std::string mask_text = hooks_folder + "mask.h";
const std::string sink_text = hooks_folder + "sink.h";
const std::string rotate_text = hooks_folder + "rotate.h";
const std::string rotated_text = hooks_folder + "turned.h";
const std::string lists_text = kernels_folder + (on_cuda ? "mask_blocks.cuda.cu" : "mask_blocks.cpu.cpp");

std::vector<ModifierMutation> modifier_mutations() {
  std::vector<ModifierMutation> all = {
      {"alibi", "sign_of_alibi", score_text, "return table_at<float>", "return -table_at<float>"},
      {"alibi", "slope_of_another_head", score_text, "[context.head]", "[context.head ^ 1]"},
      {"soft_cap", "cap_forgotten", score_text,
       on_cuda ? "1.0f : static_cast<float>(SOFT_CAP))" : "return cap * tanh_of",
       on_cuda ? "1.0f : 1.0f)" : "return tanh_of"},
      {"bias", "bias_of_another_row", score_text, "row * strides[2]", "row / 2 * strides[2]"},
      {"sinks", "sink_of_another_head", sink_text, "[context.head]", "[0]"},
      {"window_left", "window_one_too_wide", keys_text, "own - static_cast<int>(WINDOW_LEFT)",
       "own - 1 - static_cast<int>(WINDOW_LEFT)"},
      {"window_right", "window_one_too_short", keys_text, "static_cast<int>(WINDOW_RIGHT) + 1",
       "static_cast<int>(WINDOW_RIGHT)"},
      {"prefix", "prefix_shortens_the_causal_keys", keys_text, "most(causal_end", "least(causal_end"},
      {"documents", "document_of_the_key_before", keys_text,
       "KeyRange document = table_at<KeyRange>(context, modifiers_of(context).documents)[most(own, 0)]",
       "KeyRange document = table_at<KeyRange>(context, modifiers_of(context).documents)[most(own - 1, 0)]"},
      {"lengths", "one_key_of_the_padding", keys_text, ".lengths)[context.batch]", ".lengths)[context.batch] + 1"},
      {"starts", "one_key_of_the_padding_before", keys_text, ".starts)[context.batch]", ".starts)[context.batch] - 1"},
      {"starts", "start_of_another_sequence", keys_text, ".starts)[context.batch]", ".starts)[0]"},
      {"global_tokens", "global_key_forgotten", mask_text, "k < static_cast<int>(GLOBAL_TOKENS)",
       "k + 1 < static_cast<int>(GLOBAL_TOKENS)"},
      {"global_tokens", "global_query_forgotten", mask_text, "own < static_cast<int>(GLOBAL_TOKENS)",
       "own + 1 < static_cast<int>(GLOBAL_TOKENS)"},
      {"global_tokens", "partly_hidden_global_block_listed_as_seen", lists_text, "2 * block + !all", "2 * block"},
      {"window_by_mask", "masked_window_one_too_wide", mask_text, "k >= own - static_cast<int>(WINDOW_LEFT)",
       "k + 1 >= own - static_cast<int>(WINDOW_LEFT)"},
      {"window_by_mask", "partly_hidden_window_block_listed_as_seen", lists_text, "2 * block + !all", "2 * block"},
      {"block_sparse", "block_of_a_later_position", mask_text, "own < 0 ? 0 : own / sparse_block",
       "(own + 13) / sparse_block"},
      {"block_sparse", "blocks_transposed", mask_text,
       "row * sparse_words(context.kv_len) + column / 32] >> column % 32",
       "column * sparse_words(context.kv_len) + row / 32] >> row % 32"},
      {"rope", "rotated_backwards", rotated_text, "second ? partner : -partner", "second ? -partner : partner"},
      {"rope", "partner_in_the_wrong_half", rotated_text, "d < rotate_half ? d + rotate_half : d - rotate_half", "d"},
      {"rope", "position_of_the_row_in_q", rotate_text, "q + context.kv_len - context.q_len", "q"}};
  // Only the kernels for GPUs change the scores of a tile at once.
  if (on_cuda) all.push_back({"alibi", "distance_of_another_row", score_text, "+ first[r]", "+ first[0]"});
  return all;
}

// Mistakes in forms of the score, and in the hooks that call the user's functions.
std::vector<ModifierMutation> form_mutations() {
  // On a GPU the mutated function changes the scores of a tile at once; on a CPU, the scores of a row.
  const std::string alibi = on_cuda ? " {\n    const float slope = score_slope(context);\n    float first" : " {";
  const std::string cap = " {\n    const float cap = on.soft_cap, inverse = 1 / cap;\n    ";
  const std::string loop = on_cuda ? "UNROLL" : "VECTORIZE", bias = " {\n    " + loop;
  std::vector<ModifierMutation> all;
  const auto form = [&](const char* what, const char* name, const std::string& from, const std::string& to) {
    all.push_back({"", what, hooks_folder + "score_" + name + ".h", from, to, "tuned", name});
  };
  const auto users = [&](const char* what, const std::string& file, const char* from, const char* to) {
    all.push_back({"", what, "proto7_variants/kernels/" + file, from, to, "tuned", "", true});
  };
  form("run_time_alibi_off", "run_time", "if (on.alibi)" + alibi, "if (!on.alibi)" + alibi);
  form("run_time_cap_off", "run_time", "if (on.soft_cap != 0)" + cap + loop, "if (on.soft_cap == 0)" + cap + loop);
  form("run_time_bias_off", "run_time", "if (on.bias_kind)" + bias, "if (!on.bias_kind)" + bias);
  form("call_with_another_key", "noinline", "return score_in_place(s, q, k,", "return score_in_place(s, q, k + 1,");
  users("function_sees_another_query", "user_score.h", "modified_score(s, q, k, context), q, k,",
        "modified_score(s, q, k, context), q + 1, k,");
  users("mask_forgotten", "user_visible.h", "&& user_mask::visible(q, k, context)", "");
  users("mask_of_another_key", "user_visible.h", "user_mask::visible(q, k,", "user_mask::visible(q, k + 1,");
  users("bound_forgotten", "user_keys.h", "least(keys.end, bound.end)", "keys.end");
  return all;
}

// Mistakes in the kernels' own text.
std::vector<ModifierMutation> kernel_mutations(bool of_cuda) {
  if (of_cuda) {
    return {
        {"sinks", "naive_sink", kernels_folder + "naive.cuda.cu", "HAS_SINK && thread == 0", "HAS_SINK && thread < 0",
         "naive"},
        {"sinks", "mma_sync_sink", kernels_folder + "mma_sync.cuda.cu", "quarter == 0 ? first_weight(sink)",
         "quarter <= 1 ? first_weight(sink)", "mma_sync"},
        {"sinks", "wgmma_sink", kernels_folder + "wgmma.cuda.cu", "thread % 4 == 0 ? first_weight(sink)",
         "true ? first_weight(sink)", "wgmma_bf16"},
        {"alibi", "keys_numbered_from_one", kernels_folder + "wgmma.cuda.cu", "column < 3 ? key",
         "column < 3 ? key + 1", "wgmma_bf16"},
        {"alibi", "block_of_another_row", kernels_folder + "wgmma.cuda.cu", "- own - r * 8", "- own", "wgmma_bf16"},
        {"rope", "queries_not_rotated", kernels_folder + "wgmma.cuda.cu", "rotate_queries(tile);", ";", "wgmma_bf16"},
        {"rope", "queries_of_other_rows", kernels_folder + "wgmma.cuda.cu", "rotate_query(load, query,",
         "rotate_query(load, query / 2,", "wgmma_bf16"}};
  }
  return {{"sinks", "sink_left_out", kernels_folder + "softmax.h",
           "sum * share + __builtin_exp2f((sink - largest) * log2_e)", "sum * share", "naive"},
          {"sinks", "sink_of_another_unit", kernels_folder + "softmax.h", "(sink - largest) * log2_e",
           "(sink - largest)", "tuned"},
          {"sinks", "sink_not_in_the_log_sum_exp", kernels_folder + "softmax.h",
           "largest + ln_2 * __builtin_log2f(total)", "own + ln_2 * __builtin_log2f(sum)", "tiled_vector"}};
}

class MutatedModifiers : public OnDevice<testing::TestWithParam<ModifierMutation>> {};
const auto mutation_name = [](const auto& i) { return i.param.what; };
INSTANTIATE_TEST_SUITE_P(All, MutatedModifiers, testing::ValuesIn(modifier_mutations()), mutation_name);
INSTANTIATE_TEST_SUITE_P(Forms, MutatedModifiers, testing::ValuesIn(form_mutations()), mutation_name);
INSTANTIATE_TEST_SUITE_P(Kernels, MutatedModifiers, testing::ValuesIn(kernel_mutations(on_cuda)), mutation_name);

TEST_P(MutatedModifiers, AreCaught) {
  const ModifierMutation& mutation = GetParam();
  const FlashConfig config = small_config(mutation.kernel);
  const DeviceInfo& info = device().info();
  if (const auto reason = FlashOperation::of(info).skip_reason(config, info)) GTEST_SKIP() << *reason;
  Modifiers modifiers = switched(mutation.modifier);
  if (*mutation.form) modifiers = {.soft_cap = 2, .alibi = true, .bias = "hqk", .score_by = mutation.form};
  const test::MutatedSources mutated(mutation.file, mutation.from, mutation.to);
  PipelineCache cache(device(), "");
  const UserFunctions functions = mutation.users ? UserFunctions{user_score(), user_mask(true)} : UserFunctions{};
  EXPECT_FALSE(check_of(config, modifiers, cache, functions).ok);
}

TEST(KernelMutationsTest, TextsAreInTheSources) {
  for (const bool of_cuda : {false, true}) {
    test::expect_texts_in_sources(kernel_mutations(of_cuda), [](const auto& mutation) { return mutation.file; });
  }
}

}  // namespace
}  // namespace attn
