// The claims on made-up results: the duels (pairs of cases that are measured again) and the conclusions.
#include "proto1_flash/claims.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "common/cases/axes.h"
#include "common/experiment/experiment.h"
#include "common/records/finding.h"
#include "common/testing/advice.h"
#include "common/testing/devices.h"
#include "common/testing/made_up.h"
#include "proto1_flash/sweep.h"

namespace attn {
namespace {

using test::avx2;
using test::hopper;

// Returns results of the quick sweep, with made-up times: (head_dim + 20) ns for each pair of query and key, times
// factors. For example, tiles with more rows take less time, and tiles with Bc = 80 take more.
std::vector<Measurement> made_up(const DeviceInfo& info = avx2()) {
  std::vector<Measurement> results;
  const std::vector<Case> cases =
      expand(flash_sweep("quick", info), flash_axes(), [&](Case& c) { complete_flash(c, info); });
  for (const Case& config : cases) {
    Measurement result;
    result.id = fmt::format("{:016x}", results.size());
    result.config = config;
    result.check = Check{};
    const double n = static_cast<double>(config.integer("q_len")), d = static_cast<double>(config.integer("head_dim"));
    double seconds = 1e-9 * n * n * (d + 20);
    if (config.integer("causal") == 1) seconds *= 0.55;
    if (config.text("dtype") == "bf16") seconds *= 0.5;
    if (config.text("layout") == "bshd") seconds *= 1.02;
    if (config.integer("block_r") > 0) seconds *= 1 + 8.0 / static_cast<double>(config.integer("block_r"));
    if (config.integer("block_c") == 80) seconds *= 1.1;
    if (config.text("variant") != "tuned") seconds *= 30;
    const double flops = 4 * n * n * d * 8 * (config.integer("causal") == 1 ? 0.5 : 1);
    result.work = Work{flops, 1e6};
    const double pct = 100 * flops / seconds / 1e11;
    result.matrix_pct = Estimate{pct, pct * 0.99, pct * 1.01};
    result.time = {Timing{Scope::device_hot, 10, 10, seconds, seconds * 0.99, seconds * 1.01, 0.01, seconds, "ci"}};
    results.push_back(result);
  }
  return results;
}

std::vector<Duel> flash_duels(const std::vector<Measurement>& results, const DeviceInfo& info) {
  return in_turn(flash_claims(info), duels(flash_claims(info), results));
}

std::vector<Conclusion> flash_conclusions(const std::vector<Measurement>& results,
                                          const std::vector<Comparison>& comparisons) {
  return conclude(flash_claims(), results, comparisons, test::steady_processes());
}

bool of_the_tile(const std::string& axis) { return std::ranges::count(flash_tile_axes(), axis) > 0; }

// Expects one part, with the value of `estimate` and the standard error that follows from its interval.
void expect_part(const Conclusion& conclusion, const Estimate& estimate) {
  ASSERT_EQ(conclusion.parts.size(), 1u);
  EXPECT_NEAR(conclusion.estimate.value, estimate.value, 1e-9);
  EXPECT_EQ(conclusion.parts[0].value, estimate.value);
  EXPECT_NEAR(conclusion.parts[0].error, (estimate.ci_hi - estimate.ci_lo) / 2 / 1.96, 1e-9);
  EXPECT_EQ(conclusion.parts[0].rounds, 10);
}

const Duel& find(const std::vector<Duel>& duels, std::string_view hypothesis, int64_t head_dim) {
  for (const Duel& duel : duels) {
    if (duel.hypothesis == hypothesis && duel.baseline.integer("head_dim") == head_dim) return duel;
  }
  throw std::runtime_error(fmt::format("no duel for {}", hypothesis));
}

TEST(FlashDuelsTest, PickBestAndWorstTile) {
  const std::vector<Duel> duels = flash_duels(made_up(), avx2());
  for (const int64_t dim : {64, 128, 256}) {
    const Duel& duel = find(duels, "worst_tile", dim);
    // By the made-up times the default tile is the best: it has the most rows.
    EXPECT_EQ(duel.baseline.integer("block_r"), dim == 256 ? 128 : 256) << "head_dim " << dim;
    EXPECT_NE(duel.baseline.integer("block_c"), 80) << "head_dim " << dim;
    EXPECT_EQ(duel.contender.integer("block_r"), 16) << "head_dim " << dim;
    EXPECT_EQ(duel.contender.integer("block_c"), 80) << "head_dim " << dim;
    EXPECT_EQ(find(duels, "bc80", dim).contender.integer("block_c"), 80);
  }
}

TEST(FlashDuelsTest, TheDefaultTileIsComparedWithTheBestOther) {
  for (const DeviceInfo& info : {avx2(), hopper()}) {
    const std::vector<Measurement> results = made_up(info);
    const std::vector<Duel> duels = flash_duels(results, info);
    const Duel& duel = find(duels, "default_tile", 64);
    Case unnamed;
    for (const auto& [axis, value] : duel.contender.axes()) {
      if (!of_the_tile(axis)) unnamed.set(axis, value);
    }
    complete_flash(unnamed, info);
    EXPECT_EQ(duel.contender, unnamed);
    EXPECT_NE(duel.baseline, duel.contender);
    const std::vector<std::string> names = flash_tile_axes();
    const std::set<std::string> axes(names.begin(), names.end());
    EXPECT_EQ(duel.baseline.key_without(axes), duel.contender.key_without(axes));
  }
}

TEST(FlashDuelsTest, CasesOfADuelDifferInTheTileAndAtMostOneOtherAxis) {
  const std::map<std::string, std::set<std::string>> varied = {
      {"bf16", {"dtype"}}, {"causal", {"causal"}}, {"layout", {"layout"}}, {"wider_heads", {"head_dim"}},
      {"worst_tile", {}},  {"default_tile", {}},   {"bc80", {}},           {"ladder", {"variant"}}};
  std::set<std::string> seen;
  for (const Duel& duel : flash_duels(made_up(), avx2())) {
    seen.insert(duel.hypothesis);
    for (const auto& [axis, value] : duel.baseline.axes()) {
      if (of_the_tile(axis)) continue;
      const bool same = duel.contender.json()[axis] == duel.baseline.json()[axis];
      EXPECT_EQ(same, !varied.at(duel.hypothesis).contains(axis)) << duel.hypothesis << " " << axis;
    }
  }
  EXPECT_EQ(seen.size(), varied.size());
}

TEST(FlashDuelsTest, TheFirstDuelsAreOneOfEachHypothesis) {
  const std::vector<Duel> duels = flash_duels(made_up(), avx2());
  std::set<std::string> all, first;
  for (const Duel& duel : duels) all.insert(duel.hypothesis);
  for (size_t i = 0; i < all.size(); ++i) first.insert(duels[i].hypothesis);
  EXPECT_EQ(first, all);
}

TEST(FlashDuelsTest, WrongAndSkippedResultsTakeNoPart) {
  std::vector<Measurement> results = made_up();
  for (Measurement& result : results) {
    if (result.config.integer("block_r") >= 128) result.status = "wrong";
  }
  for (const Duel& duel : flash_duels(results, avx2()))
    EXPECT_LT(duel.baseline.integer("block_r"), 128) << duel.hypothesis;
  for (Measurement& result : results) result.time.clear();
  EXPECT_TRUE(flash_duels(results, avx2()).empty());
  EXPECT_TRUE(flash_conclusions(results, {}).empty());
}

// A placeholder without a value would leave a brace in the text.
TEST(FlashConclusionsTest, DuelsBecomeFindingsWithAValueForEachPlaceholder) {
  std::set<std::string> judged;
  const std::vector<Hypothesis> registered = hypotheses(flash_claims());
  for (const DeviceInfo& info : {avx2(), hopper()}) {
    const std::vector<Measurement> results = made_up(info);
    std::vector<Comparison> comparisons;
    for (const Duel& duel : flash_duels(results, info))
      comparisons.push_back(test::made_up_comparison(duel, 1e-3, 1.5e-3));
    std::set<std::string> claims;
    for (const Conclusion& conclusion : flash_conclusions(results, comparisons)) {
      const auto hypothesis = std::find_if(registered.begin(), registered.end(),
                                           [&](const Hypothesis& h) { return h.id == conclusion.hypothesis; });
      ASSERT_NE(hypothesis, registered.end()) << conclusion.hypothesis;
      const Json finding = make_finding("proto1_flash", "test", *hypothesis, conclusion, "r");
      EXPECT_EQ(finding["content"].get<std::string>().find('{'), std::string::npos) << finding["content"];
      EXPECT_FALSE(conclusion.measurements.empty());
      const std::set<std::string> tags(conclusion.tags.begin(), conclusion.tags.end());
      EXPECT_EQ(tags.size(), conclusion.tags.size()) << conclusion.hypothesis;
      judged.insert(conclusion.hypothesis);
      EXPECT_TRUE(claims.insert(finding["claim_key"]).second)
          << "two findings have the claim_key " << finding["claim_key"];
    }
  }
  EXPECT_EQ(judged.size(), registered.size());
}

TEST(FlashConclusionsTest, TheShareOfTheCeilingIsThatOfTheLongestSequence) {
  const std::vector<Measurement> results = made_up();
  bool found = false;
  for (const Conclusion& conclusion : flash_conclusions(results, {})) {
    if (conclusion.hypothesis != "ceiling" || conclusion.values["head_dim"] != 128) continue;
    if (conclusion.values["layout"] != "bhsd") continue;
    found = true;
    const auto& result = *std::find_if(results.begin(), results.end(),
                                       [&](const Measurement& r) { return r.id == conclusion.measurements.at(0); });
    EXPECT_EQ(result.config.integer("q_len"), 2048);
    expect_part(conclusion, *result.matrix_pct);
    EXPECT_NEAR(conclusion.values["ceiling_tflops"].get<double>(), 0.1, 1e-12);
  }
  EXPECT_TRUE(found);
}

// A claim does not judge a case by the samples that picked the case.
TEST(FlashConclusionsTest, OtherProcessesMeasureThePickedCasesAgain) {
  const std::vector<Measurement> results = made_up();
  for (const Claim& claim : flash_claims()) {
    if (claim.compared || conclude({claim}, results, {}).empty()) continue;
    EXPECT_FALSE(claim.exact) << claim.hypothesis.id;
    EXPECT_FALSE(cases_of_claims({claim}, results).empty()) << claim.hypothesis.id;
    if (claim.hypothesis.id != "best_tile") continue;
    Processes processes = test::steady_processes();
    processes.results = {results};
    for (Measurement& again : processes.results[0]) again.time[0].median_s = 1;
    for (const Conclusion& conclusion : conclude({claim}, results, {}, processes)) {
      EXPECT_EQ(conclusion.estimate.value, 1) << "judged by the samples that picked the tile";
    }
  }
}

TEST(FlashConclusionsTest, TimeGrowsWithTheSquareOfTheLength) {
  int found = 0;
  for (const Conclusion& conclusion : flash_conclusions(made_up(), {})) {
    if (conclusion.hypothesis != "scaling") continue;
    ++found;
    EXPECT_NEAR(conclusion.estimate.value, 2, 0.05) << conclusion.subject;
    EXPECT_EQ(conclusion.subject.find("q_len"), std::string::npos);
  }
  EXPECT_EQ(found, 6);  // three values of head_dim, each with and without a causal mask
}

TEST(FlashConclusionsTest, TheBestTileOfEveryShapeIsComparedWithTheNextBest) {
  int found = 0, unclear = 0;
  for (const Conclusion& conclusion : flash_conclusions(made_up(), {})) {
    if (conclusion.hypothesis != "best_tile") continue;
    ++found;
    EXPECT_EQ(conclusion.subject.find("block_"), std::string::npos) << conclusion.subject;
    ASSERT_EQ(conclusion.measurements.size(), 2u);
    EXPECT_GE(conclusion.estimate.value, 1) << conclusion.subject;
    const double ratio = conclusion.parts.at(0).value;
    expect_part(conclusion, {ratio, ratio * 0.99 / 1.01, ratio * 1.01 / 0.99});
    for (const Hypothesis& hypothesis : hypotheses(flash_claims())) {
      if (hypothesis.id == "best_tile") unclear += judge(hypothesis, conclusion).state == State::inconclusive;
    }
    // By the made-up times more rows are faster, and Bc = 80 is never the fastest.
    EXPECT_NE(conclusion.values["baseline"]["block_c"].get<int64_t>(), 80);
    EXPECT_GE(conclusion.values["baseline"]["block_r"].get<int64_t>(),
              conclusion.values["contender"]["block_r"].get<int64_t>());
  }
  EXPECT_GE(found, 3);
  EXPECT_GT(unclear, 0);  // tiles that differ only in Bc have equal made-up times, unless Bc is 80
}

TEST(FlashHypothesesTest, HaveDistinctIdsAndKnownOperators) {
  std::set<std::string> ids;
  for (const Hypothesis& hypothesis : hypotheses(flash_claims())) {
    EXPECT_TRUE(ids.insert(hypothesis.id).second);
    EXPECT_TRUE((std::set<std::string>{"<", "<=", ">", ">="}.contains(hypothesis.op)));
    EXPECT_FALSE(hypothesis.origin.empty());
  }
  EXPECT_GE(ids.size(), 5u);
}

// For each claim: words of the advice for a figure below the threshold, and for a figure above the threshold.
TEST(FlashClaimsTest, AdviceFitsFiguresBelowAndAboveTheThreshold) {
  using test::Choice;
  test::expect_advice(
      flash_claims(),
      {
          {"worst_tile", {"Do not spend time on the tile"}, {"Do not take just any tile"}},
          {"best_tile", {"or the next"}, {"Take the best tile: the next"}},
          {"default_tile",
           {"Leave the tile to the default", Choice::second},
           {"Name the best tile", Choice::first},
           true},
          {"bc80", {"Try Bc = 80", Choice::second}, {"Keep Bc to powers of two", Choice::first}},
          {"wider_heads", {"Prefer few wide heads"}, {"Do not expect wide heads to save time"}},
          {"scaling", {"grow less than"}, {"grow at least"}},
          {"bf16",
           {"Store Q, K and V in bf16: it saves memory, and takes at most", Choice::second},
           {"to save memory; do not expect it"}},
          {"causal", {"it then takes at most"}, {"Do not plan with 0.6"}},
          {"layout",
           {"Keep the layout that the caller has", Choice::second},
           {"Convert bshd to bhsd", Choice::first},
           true},
          {"ladder", {"Use the tuned kernel", Choice::second}, {"Do not expect the tuned kernel to take 0.1"}},
          {"ceiling", {"Expect less than 82 %"}, {"Expect at least 82 %"}},
          {"ceiling_causal", {"expect less than 80 %"}, {"expect at least 80 %"}},
          {"ceiling_16_bit", {"expect less than 75 %"}, {"expect at least 75 %"}},
          {"ceiling_16_bit_causal", {"expect less than 65 %"}, {"expect at least 65 %"}},
      });
}

TEST(FlashClaimsTest, ATileIsCalledTheFastestOnlyWhereItIs) {
  std::map<std::string, std::string> titles;  // by verdict
  for (const Conclusion& conclusion : flash_conclusions(made_up(), {})) {
    if (conclusion.hypothesis != "best_tile") continue;
    const Hypothesis best = hypotheses(flash_claims()).at(1);
    ASSERT_EQ(best.id, "best_tile");
    const Json finding = make_finding("proto1_flash", "test", best, conclusion, "r");
    titles[finding["data"]["verdict"]["state"]] = finding["title"];
  }
  EXPECT_EQ(titles["inconclusive"].substr(0, 26), "No flash attention tile of");
  EXPECT_EQ(titles["supported"].find("No "), std::string::npos);
}

}  // namespace
}  // namespace attn
