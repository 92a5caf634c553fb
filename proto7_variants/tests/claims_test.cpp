// The claims choose duels (pairs of cases that are measured again) and draw conclusions. The tests run the claims'
// functions on made-up results.
#include "proto7_variants/claims.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/modifiers.h"
#include "common/cases/modifier_axes.h"
#include "common/experiment/experiment.h"
#include "common/records/finding.h"
#include "common/testing/advice.h"
#include "common/testing/devices.h"
#include "common/testing/made_up.h"
#include "proto7_variants/problem.h"
#include "proto7_variants/sweep.h"

namespace attn {
namespace {

using test::hopper;

// Returns a made-up time. The time of attention is in proportion to the pairs that the mask leaves, and each modifier
// adds a tenth.
double seconds_of(const Measurement& result) {
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
// Hypotheses about two ways to make the same mask, with the number of modifiers of the baseline and of the contender.
const std::map<std::string, std::pair<size_t, size_t>> two_ways = {
    {"window_by_list", {1, 2}}, {"window_lists", {3, 2}}, {"sparse_lists", {2, 1}}};

std::vector<Measurement> made_up(const std::function<double(const Measurement&)>& time = seconds_of) {
  std::vector<Measurement> results;
  std::vector<Sweep> sweeps = {variants_sweep("quick", hopper())};
  for (const auto& [axis, value] : {std::pair("score_function", "file-0123456789ab"),
                                    {"mask_function", "file-0123456789ab"},
                                    {"rope", "kernel"}}) {  // the sweep already has rope=query
    sweeps.push_back(functions_sweep("quick", hopper()));
    override_axis(sweeps.back(), texts(axis, {value}));
  }
  std::vector<Case> cases;
  for (const Sweep& sweep : sweeps) {
    const auto more = expand(sweep, variants_axes(), [](Case& c) { complete_variants(c, hopper()); });
    cases.insert(cases.end(), more.begin(), more.end());
  }
  for (const Case& config : cases) {
    Case without = config;  // no file has the text of the made-up functions
    for (const char* function : {"score_function", "mask_function"}) without.set(function, std::string("none"));
    Measurement result;
    result.id = fmt::format("{:016x}", results.size());
    result.config = config;
    result.check = Check{};
    result.work = variants_case_plan(without, {hopper()}).work;
    result.pipeline = {{"code_bytes", 6000}, {"registers", 160}, {"spill_bytes", 0}};
    const double seconds = time(result);
    result.copy_pct = Estimate{90, 89.5, 90.5};
    const Scope scope = result.work->bound == Bound::memory ? Scope::device_cold : Scope::device_hot;
    result.time = {Timing{scope, 10, 10, seconds, seconds, seconds, 0.01, seconds, "ci"}};
    results.push_back(result);
  }
  return results;
}

std::vector<Comparison> compare(const std::vector<Measurement>& results, const std::vector<Duel>& duels) {
  std::vector<Comparison> comparisons;
  const auto time = [&](const Case& config) {
    return std::ranges::find_if(results, [&](const Measurement& r) { return r.config == config; })->time;
  };
  for (const Duel& duel : duels) {
    Comparison comparison;
    comparison.hypothesis = duel.hypothesis;
    comparison.baseline = duel.baseline;
    comparison.contender = duel.contender;
    comparison.time = {time(duel.baseline).front(), time(duel.contender).front()};
    const bool cold =
        std::ranges::any_of(comparison.time, [](const Timing& t) { return t.scope == Scope::device_cold; });
    for (Timing& t : comparison.time) t.scope = cold ? Scope::device_cold : Scope::device_hot;
    const double ratio = comparison.time[1].median_s / comparison.time[0].median_s;
    comparison.ratio = {ratio, 0.999 * ratio, 1.001 * ratio};
    comparison.aa = {1, 0.999, 1.001};
    comparison.cv = 0.01;
    comparisons.push_back(comparison);
  }
  return comparisons;
}

std::vector<Conclusion> conclusions_of(const std::vector<Measurement>& results) {
  const std::vector<Claim> claims = variants_claims();
  return conclude(claims, results, compare(results, duels(claims, results)), test::steady_processes());
}

const Hypothesis& hypothesis_of(const std::vector<Claim>& claims, const Conclusion& conclusion) {
  return std::ranges::find_if(claims, [&](const Claim& c) { return c.hypothesis.id == conclusion.hypothesis; })
      ->hypothesis;
}

// With a window or a soft cap another tile may have the least expected time.
TEST(VariantsSweep, TheTileFollowsFromTheModifiers) {
  const auto tile_of = [](int64_t head_dim, int64_t q_len, int64_t causal, const std::string& modifier, int64_t value) {
    Case config;
    const std::pair<const char*, AxisValue> axes[] = {{"variant", std::string("tuned")},
                                                      {"batch", int64_t{1}},
                                                      {"q_heads", int64_t{32}},
                                                      {"q_len", q_len},
                                                      {"head_dim", head_dim},
                                                      {"causal", causal},
                                                      {"dtype", std::string("bf16")},
                                                      {"out_dtype", std::string("bf16")},
                                                      {"layout", std::string("bhsd")}};
    for (const auto& [axis, axis_value] : axes) config.set(axis, axis_value);
    if (!modifier.empty()) config.set(modifier, value);
    complete_variants(config, hopper());
    return fmt::format("{}x{}", config.integer("block_r"), config.integer("block_c"));
  };
  EXPECT_EQ(tile_of(64, 2048, 1, "", 0), "256x64");
  EXPECT_EQ(tile_of(64, 2048, 1, "window_left", 1024), "192x128");
  EXPECT_EQ(tile_of(64, 8192, 0, "", 0), "192x128");
  EXPECT_EQ(tile_of(64, 8192, 0, "soft_cap", 30), "256x64");
  EXPECT_EQ(tile_of(64, 2048, 0, "soft_cap", 30), "256x64");
  EXPECT_EQ(tile_of(64, 8192, 1, "soft_cap", 30), "256x64");
  EXPECT_EQ(tile_of(128, 2048, 1, "", 0), "192x80");
  EXPECT_EQ(tile_of(128, 2048, 1, "soft_cap", 30), "192x64");
  EXPECT_EQ(tile_of(128, 2048, 0, "soft_cap", 30), "128x128");
  EXPECT_EQ(tile_of(128, 8192, 0, "soft_cap", 30), "192x80");
}

TEST(VariantsFindings, EachModifierIsComparedWithPlainAttentionOfItsShape) {
  const std::vector<Measurement> results = made_up();
  std::map<std::string, int> counts;
  for (const Duel& duel : duels(variants_claims(), results)) {
    ++counts[duel.hypothesis];
    if (duel.hypothesis == "rope_fused") continue;  // the baseline has RoPE too, in another kernel
    if (duel.hypothesis == "score_run_time" || duel.hypothesis == "score_noinline") {
      EXPECT_EQ(duel.baseline.key_without({"score_by", "block_r", "block_c"}),
                duel.contender.key_without({"score_by", "block_r", "block_c"}));
      EXPECT_EQ(duel.baseline.text("score_by"), "constant");
      EXPECT_EQ("score_" + duel.contender.text("score_by"), duel.hypothesis);
      continue;
    }
    if (duel.hypothesis == "same_tile") {
      EXPECT_EQ(duel.baseline.key_without({"block_r", "block_c"}), duel.contender.key_without({"block_r", "block_c"}));
      EXPECT_NE(duel.baseline, duel.contender);
      continue;
    }
    const bool by_lists = two_ways.contains(duel.hypothesis);
    EXPECT_EQ(modifiers_on(duel.baseline).size(), by_lists ? two_ways.at(duel.hypothesis).first : 0);
    EXPECT_EQ(duel.baseline.text("dtype"), duel.contender.text("dtype"));
    EXPECT_EQ(duel.baseline.integer("causal"), duel.contender.integer("causal"));
    EXPECT_EQ(duel.baseline.integer("head_dim"), duel.contender.integer("head_dim"));
    EXPECT_EQ(modifiers_on(duel.contender).size(), duel.hypothesis == "together"        ? 4u
                                                   : duel.hypothesis == "global_tokens" ? 2u
                                                   : duel.hypothesis.starts_with("gqa") ? 0u
                                                   : by_lists ? two_ways.at(duel.hypothesis).second
                                                              : 1u);
    EXPECT_EQ(duel.baseline.text("kv_heads_by"), "index");
    EXPECT_EQ(duel.contender.text("kv_heads_by"), duel.hypothesis == "gqa_copy" ? "copy" : "index");
    EXPECT_EQ(duel.baseline.integer("kv_heads") == duel.contender.integer("kv_heads"), duel.hypothesis != "gqa_index");
  }
  for (const Claim& claim : variants_claims()) {
    EXPECT_EQ(counts[claim.hypothesis.id] > 0, claim.compared) << claim.hypothesis.id;
  }
}

TEST(VariantsFindings, VerdictsFollowFromTheFigures) {
  const std::vector<Measurement> results = made_up();
  const std::vector<Claim> claims = variants_claims();
  const std::vector<Conclusion> all = conclusions_of(results);
  for (const Conclusion& conclusion : all) {
    const Hypothesis& hypothesis = hypothesis_of(claims, conclusion);
    // The claims that the times of seconds_of() refute: they allow less, and score_noinline asks for more.
    const std::set<std::string> too_much = {"alibi",        "sinks",          "rope_before",   "rope_share",
                                            "expand_share", "score_run_time", "score_noinline"};
    const State expected = hypothesis.id == "rope_fused"      ? State::inconclusive  // the cases take equally long
                           : too_much.contains(hypothesis.id) ? State::refuted
                                                              : State::supported;
    EXPECT_EQ(judge(hypothesis, conclusion).state, expected) << hypothesis.id;
    if (hypothesis.id == "expand_share") {
      const bool causal = conclusion.subject.find("causal=1") != std::string::npos;  // half of the pairs
      EXPECT_NEAR(conclusion.estimate.value, causal ? 2e-3 : 1e-3, 2e-6) << conclusion.subject;
    }
    if (hypothesis.metric.find("over the share") != std::string::npos) {
      const double expected_share = hypothesis.id == "together" ? 1.4 : hypothesis.id == "global_tokens" ? 1.2 : 1.1;
      EXPECT_NEAR(conclusion.estimate.value, expected_share, 1e-6) << hypothesis.id;
    }
    const Json finding = make_finding("proto7_variants", "fake", hypothesis, conclusion, "r");
    EXPECT_FALSE(finding.at("title").get<std::string>().empty());
  }
  EXPECT_GE(all.size(), 30u);
}

// A copy is memory-bound, so the main time of a copy is its time with cold caches. The claim expand_share compares
// times with hot caches.
TEST(VariantsFindings, TheShareOfACopyComparesHotWithHot) {
  std::vector<Measurement> results = made_up();
  for (Measurement& result : results) {
    if (result.config.text("task") != "expand") continue;
    Timing hot = result.time.front(), cold = hot;
    hot.scope = Scope::device_hot;
    cold.scope = Scope::device_cold;
    for (double* seconds : {&cold.median_s, &cold.ci_lo_s, &cold.ci_hi_s}) *seconds *= 10;
    result.time = {hot, cold};
    ASSERT_EQ(result.main_timing()->scope, Scope::device_cold);
  }
  int found = 0;
  for (const Conclusion& conclusion : conclusions_of(results)) {
    if (conclusion.hypothesis != "expand_share") continue;
    ++found;
    EXPECT_LT(conclusion.estimate.value, 2.1e-3) << "the claim took the time of the cold copy";
  }
  EXPECT_GT(found, 0);
}

std::string tile_of(const Case& config) { return config.key({"block_r", "block_c"}); }

// The contender has the tile that is the fastest for plain attention, even where another tile is faster with the
// modifier. The baseline has the fastest of the other tiles.
TEST(VariantsFindings, AModifierMayAskForAnotherTile) {
  const std::string plain = "block_r=192 block_c=80", capped = "block_r=128 block_c=64",
                    next = "block_r=128 block_c=128";
  const std::vector<Measurement> results = made_up([&](const Measurement& result) {
    const std::string tile = tile_of(result.config);
    const bool cap = result.config.integer("soft_cap") != 0;
    return seconds_of(result) * (cap && tile == capped ? 0.8 : tile == plain ? 0.9 : tile == next ? 0.95 : 1);
  });
  const std::vector<Claim> claims = variants_claims();
  std::map<std::string, State> states;
  for (const Conclusion& conclusion : conclusions_of(results)) {
    if (conclusion.hypothesis != "same_tile") continue;
    const std::string modifier = modifiers_on(conclusion.compare->contender).front();
    EXPECT_EQ(tile_of(conclusion.compare->contender), plain) << modifier;
    EXPECT_EQ(tile_of(conclusion.compare->baseline), modifier == "soft_cap" ? capped : next) << modifier;
    states[modifier] = judge(claims.back().hypothesis, conclusion).state;
  }
  EXPECT_EQ(states, (std::map<std::string, State>{
                        {"alibi", State::supported}, {"soft_cap", State::refuted}, {"window_left", State::supported}}));
}

// Plain attention with another tile is no baseline for modifiers that ran only with the default tile.
TEST(VariantsFindings, ModifiersAreComparedAtDefaultTiles) {
  const std::vector<Measurement> results = made_up([](const Measurement& result) {
    return seconds_of(result) *
           (modifiers_on(result.config).empty() ? 1 - 0.01 * (result.config.integer("block_r") % 7) : 1);
  });
  std::map<std::string, std::string> first;  // the default tile, by the values of all other axes
  for (const Measurement& result : results) {
    first.emplace(result.config.key_without({"block_r", "block_c"}), tile_of(result.config));
  }
  for (const Duel& duel : duels(variants_claims(), results)) {
    if (duel.hypothesis == "same_tile") continue;
    for (const Case& side : {duel.baseline, duel.contender}) {
      EXPECT_EQ(tile_of(side), first.at(side.key_without({"block_r", "block_c"}))) << duel.hypothesis;
    }
  }
}

// Two conclusions with one key would be pooled as two runs of one claim.
TEST(VariantsFindings, NoTwoConclusionsHaveTheSameKey) {
  const std::vector<Measurement> results = made_up();
  const std::vector<Claim> claims = variants_claims();
  std::set<std::string> keys;
  for (const Conclusion& conclusion : conclusions_of(results)) {
    const std::string key =
        claim_key("proto7_variants", hypothesis_of(claims, conclusion), "fake", conclusion.subject, "device_hot", "");
    EXPECT_TRUE(keys.insert(key).second) << key;
  }
}

// The table has two texts for each claim: the advice if the claim's figure is small, and the advice if it is large.
TEST(VariantsFindings, AdviceFitsFiguresBelowAndAboveTheThreshold) {
  using test::Choice;
  test::expect_advice(
      variants_claims(),
      {
          {"alibi", {"Use ALiBi where the model wants it"}, {"Expect ALiBi to make attention take more"}},
          {"soft_cap", {"Use a soft cap where the model wants it"}, {"Expect a soft cap to make attention take more"}},
          {"sinks", {"Use sinks where the model wants them"}, {"Expect sinks to make attention take more"}},
          {"bias", {"Add a tensor to the scores in the kernel"}, {"Expect a tensor that is added"}},
          {"window", {"Expect a window to take at most"}, {"Expect a window to take more than"}},
          {"documents", {"Pack documents into one sequence"}, {"Expect packed documents to take more"}},
          {"prefix",
           {"Expect a prefix that all queries see to take at most"},
           {"Expect a prefix that all queries see to take more than"}},
          {"lengths", {"Pad sequences, and give their lengths"}, {"Expect padded sequences to take more"}},
          {"starts", {"Pad prompts on the left"}, {"Expect prompts that are padded on the left to take more"}},
          {"score_function", {"Use a score function of your own"}, {"Expect a score function of your own"}},
          {"mask_function",
           {"Expect a mask by a function to take at most"},
           {"Expect a mask by a function to take more than"}},
          {"together",
           {"sinks and a window together to take at most"},
           {"sinks and a window together to take more than"}},
          {"global_tokens",
           {"Expect a window with global tokens to take at most"},
           {"Expect a window with global tokens to take more than"}},
          {"block_sparse",
           {"Expect block-sparse attention to take at most"},
           {"Expect block-sparse attention to take more than"}},
          {"window_by_list",
           {"Write a window as a mask where that is simpler", Choice::second},
           {"Write a mask as a range of keys", Choice::first},
           true},
          {"window_lists", {"Give masks lists of key blocks", Choice::second}, {"Do not expect lists of key blocks"}},
          {"sparse_lists", {"Give masks lists of key blocks", Choice::second}, {"Do not expect lists of key blocks"}},
          {"score_run_time",
           {"Compile one kernel with all score modifiers", Choice::second},
           {"Compile score modifiers in as constants", Choice::first},
           true},
          {"score_noinline", {"Weigh a call for each score"}, {"Have score modifiers inlined", Choice::first}},
          {"gqa_index",
           {"Let query heads share keys by an index"},
           {"Expect query heads that share keys to take more"}},
          {"rope_share", {"Leave the launch of RoPE out of account"}, {"Count the launch of RoPE too"}},
          {"rope_copy", {"at less than 88 % of the rate of a copy"}, {"at least at 88 % of the rate of a copy"}},
          {"rope_before",
           {"Turn Q and K by a launch before attention: it takes at most"},
           {"Expect attention with a launch of RoPE"}},
          {"rope_fused",
           {"Let the kernel turn Q and K", Choice::second},
           {"Turn Q and K by a launch before attention, not", Choice::first}},
          {"gqa_copy",
           {"Copy key/value heads where a kernel has no index", Choice::second},
           {"Find shared heads by an index", Choice::first},
           true},
          {"expand_share", {"Leave copies of key/value heads out of account"}, {"Count copies of key/value heads too"}},
          {"same_tile",
           {"Keep the tile that is the fastest without", Choice::second},
           {"Choose the tile for the modifier", Choice::first},
           true},
      });
}

}  // namespace
}  // namespace attn
