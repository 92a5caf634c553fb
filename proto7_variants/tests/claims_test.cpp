// The claims, the plans and the tiles on made-up results.
#include "proto7_variants/claims.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/modifiers.h"
#include "common/cases/modifier_axes.h"
#include "common/testing/claims.h"
#include "common/testing/planned_cases.h"
#include "proto7_variants/problem.h"
#include "proto7_variants/sweep.h"

namespace attn {
namespace {

using test::hopper;

// The time of attention is in proportion to the pairs that the mask leaves, and each modifier adds a tenth.
double variants_seconds(const Measurement& result) {
  const Case& config = result.config;
  if (config.text("task") == "expand") {
    const int64_t pairs = config.integer("q_heads") * config.integer("kv_len") * config.integer("kv_len");
    return 1e-3 * 4 * static_cast<double>(pairs * config.integer("head_dim")) * 1e-14;
  }
  if (config.text("task") == "rope") return 1e-6;
  const double without_lists = config.integer("lists") == 0 ? 3 : 1;
  const double modifiers = static_cast<double>(modifiers_on(config).size());
  return result.work->flops * 1e-14 * without_lists *
         (config.text("kv_heads_by") == "copy" ? 0.9 : 1 + 0.1 * modifiers);
}

test::MadeUp made_up(const std::function<double(const Measurement&)>& seconds = variants_seconds) {
  test::MadeUp made{.spec = variants_experiment(), .device = hopper(), .seconds = seconds};
  made.spec.plan = [](Case config, const Setting& setting) {
    // No file has the text of the made-up functions.
    for (const char* function : {"score_function", "mask_function"}) config.set(function, std::string("none"));
    return variants_case_plan(config, setting);
  };
  made.also = [](Measurement& result) {
    result.pipeline = {{"code_bytes", 6000}, {"registers", 160}, {"spill_bytes", 0}};
    result.copy_pct = Estimate{90, 89.5, 90.5};
  };
  return made;
}

std::vector<Measurement> results_of(const test::MadeUp& made) {
  Sweep all = variants_sweep("quick", hopper());
  for (const auto& [axis, value] : {std::pair("score_function", "file-0123456789ab"),
                                    {"mask_function", "file-0123456789ab"},
                                    {"rope", "kernel"}}) {  // the sweep already has rope=query
    Sweep more = functions_sweep("quick", hopper());
    override_axis(more, texts(axis, {value}));
    all.blocks.insert(all.blocks.end(), more.blocks.begin(), more.blocks.end());
  }
  return made.results(all);
}

TEST(VariantsClaimsTest, OfMadeUpResults) {
  const test::MadeUp made = made_up();
  const test::Judged judged(made, results_of(made));
  test::expect_claims({judged}, {{"alibi", "alibi", "refuted"},
                                 {"soft_cap", "block_c soft_cap", "supported"},
                                 {"sinks", "sinks", "refuted"},
                                 {"bias", "bias block_c block_r", "supported"},
                                 {"window", "block_c window_left", "supported"},
                                 {"documents", "documents", "supported"},
                                 {"prefix", "prefix", "supported"},
                                 {"lengths", "lengths", "supported"},
                                 {"starts", "starts", "supported"},
                                 {"score_function", "block_c score_function", "supported"},
                                 {"mask_function", "mask_function", "supported"},
                                 {"together", "alibi block_c sinks soft_cap window_left", "supported"},
                                 {"global_tokens", "block_c global_tokens window_left", "supported"},
                                 {"block_sparse", "block_c block_r block_sparse", "supported"},
                                 {"window_by_list", "window_by", "supported"},
                                 {"window_lists", "lists", "supported"},
                                 {"sparse_lists", "lists", "supported"},
                                 {"score_run_time", "score_by", "refuted"},
                                 {"score_noinline", "score_by", "refuted"},
                                 {"gqa_index", "kv_heads", "supported"},
                                 {"rope_share", "rope task", "refuted"},
                                 {"rope_copy", "", "supported"},
                                 {"rope_before", "rope", "refuted"},
                                 {"rope_fused", "rope", "inconclusive"},
                                 {"gqa_copy", "kv_heads_by", "supported"},
                                 {"expand_share", "", "refuted"},
                                 {"same_tile", "block_c block_r", "supported"}});
  const std::map<std::string, double> shares = {{"together", 1.4}, {"global_tokens", 1.2}};
  for (const Conclusion& conclusion : made.conclusions(judged.results, judged.comparisons)) {
    const Hypothesis& hypothesis = made.hypothesis(conclusion.hypothesis);
    if (hypothesis.id == "expand_share") {
      const bool causal = conclusion.subject.find("causal=1") != std::string::npos;  // half of the pairs
      EXPECT_NEAR(conclusion.estimate.value, causal ? 2e-3 : 1e-3, 2e-6) << conclusion.subject;
    } else if (hypothesis.metric.find("over the share") != std::string::npos) {
      const double share = shares.contains(hypothesis.id) ? shares.at(hypothesis.id) : 1.1;
      EXPECT_NEAR(conclusion.estimate.value, share, 1e-6) << hypothesis.id;
    }
  }
}

// A copy is memory-bound, so the main time of a copy is its time with cold caches. The claim expand_share compares
// times with hot caches.
TEST(VariantsClaimsTest, TheShareOfACopyComparesHotWithHot) {
  const test::MadeUp made = made_up();
  std::vector<Measurement> results = results_of(made);
  for (Measurement& result : results) {
    if (result.config.text("task") != "expand") continue;
    Timing& cold = result.time.front();
    ASSERT_EQ(cold.scope, Scope::device_cold);
    for (double* seconds : {&cold.median_s, &cold.ci_lo_s, &cold.ci_hi_s}) *seconds *= 10;
  }
  const std::vector<Conclusion> shares = made.conclusions(results, "expand_share");
  EXPECT_FALSE(shares.empty());
  for (const Conclusion& conclusion : shares) EXPECT_LT(conclusion.estimate.value, 2.1e-3);
}

std::string tile_of(const Case& config) { return config.key({"block_r", "block_c"}); }

// The contender has the tile that is the fastest for plain attention, even where another tile is faster with the
// modifier. The baseline has the fastest of the other tiles.
TEST(VariantsClaimsTest, AModifierMayAskForAnotherTile) {
  const std::string plain = "block_r=192 block_c=80", capped = "block_r=128 block_c=64",
                    next = "block_r=128 block_c=128";
  const test::MadeUp made = made_up([&](const Measurement& result) {
    const std::string tile = tile_of(result.config);
    const bool cap = result.config.integer("soft_cap") != 0;
    return variants_seconds(result) * (cap && tile == capped ? 0.8 : tile == plain ? 0.9 : tile == next ? 0.95 : 1);
  });
  std::map<std::string, State> states;
  for (const Conclusion& conclusion : made.conclusions(results_of(made), "same_tile")) {
    const std::string modifier = modifiers_on(conclusion.compare->contender).front();
    EXPECT_EQ(tile_of(conclusion.compare->contender), plain) << modifier;
    EXPECT_EQ(tile_of(conclusion.compare->baseline), modifier == "soft_cap" ? capped : next) << modifier;
    states[modifier] = made.verdict(conclusion);
  }
  EXPECT_EQ(states, (std::map<std::string, State>{
                        {"alibi", State::supported}, {"soft_cap", State::refuted}, {"window_left", State::supported}}));
}

// Plain attention with another tile is no baseline for modifiers that ran only with the default tile.
TEST(VariantsClaimsTest, ModifiersAreComparedAtDefaultTiles) {
  const test::MadeUp made = made_up([](const Measurement& result) {
    const double faster = 0.01 * static_cast<double>(result.config.integer("block_r") % 7);
    return variants_seconds(result) * (modifiers_on(result.config).empty() ? 1 - faster : 1);
  });
  const std::vector<Measurement> results = results_of(made);
  std::map<std::string, std::string> first;  // the default tile, by the values of all other axes
  for (const Measurement& result : results) {
    first.emplace(result.config.key_without({"block_r", "block_c"}), tile_of(result.config));
  }
  for (const Duel& duel : duels(made.claims(), results)) {
    if (duel.hypothesis == "same_tile") continue;
    for (const Case& side : {duel.baseline, duel.contender}) {
      EXPECT_EQ(tile_of(side), first.at(side.key_without({"block_r", "block_c"}))) << duel.hypothesis;
    }
  }
}

TEST(VariantsSweepTest, FullHoldsQuick) { test::expect_sweep(variants_experiment()); }

TEST(VariantsPlanTest, ProblemsRunTheirPlans) {
  test::expect_problems_run_their_plans(variants_experiment(),
                                        "q_len=64 q_heads=4 kv_heads=2 head_dim=64 block_r=64 block_c=64 causal=1");
}

// With a window or a soft cap another tile may have the least expected time.
TEST(VariantsSweepTest, TheTileFollowsFromTheModifiers) {
  struct Row {
    int64_t head_dim, q_len, causal;
    const char* modifier;
    int64_t value;
    const char* tile;
  };
  for (const auto& [head_dim, q_len, causal, modifier, value, tile] :
       std::vector<Row>{{64, 2048, 1, "soft_cap", 0, "256x64"},
                        {64, 2048, 1, "window_left", 1024, "192x128"},
                        {64, 8192, 0, "soft_cap", 0, "192x128"},
                        {64, 8192, 0, "soft_cap", 30, "256x64"},
                        {64, 2048, 0, "soft_cap", 30, "256x64"},
                        {64, 8192, 1, "soft_cap", 30, "256x64"},
                        {128, 2048, 1, "soft_cap", 0, "192x80"},
                        {128, 2048, 1, "soft_cap", 30, "192x64"},
                        {128, 2048, 0, "soft_cap", 30, "128x128"},
                        {128, 8192, 0, "soft_cap", 30, "192x80"}}) {
    Case config;
    const std::pair<const char*, AxisValue> axes[] = {{"variant", std::string("tuned")},
                                                      {"batch", int64_t{1}},
                                                      {"q_heads", int64_t{32}},
                                                      {"q_len", q_len},
                                                      {"head_dim", head_dim},
                                                      {"causal", causal},
                                                      {"dtype", std::string("bf16")},
                                                      {"out_dtype", std::string("bf16")},
                                                      {"layout", std::string("bhsd")},
                                                      {modifier, value}};
    for (const auto& [axis, axis_value] : axes) config.set(axis, axis_value);
    complete_variants(config, hopper());
    EXPECT_EQ(fmt::format("{}x{}", config.integer("block_r"), config.integer("block_c")), tile) << config.key();
  }
}

}  // namespace
}  // namespace attn
