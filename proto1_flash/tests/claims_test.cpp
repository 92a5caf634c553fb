// The claims on made-up results: the duels (pairs of cases that are measured again), the conclusions and the answer.
#include "proto1_flash/claims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/testing/claims.h"
#include "proto1_flash/sweep.h"

namespace attn {
namespace {

// (head_dim + 20) ns for each pair of query and key, times factors. Tiles with more rows take less time, and tiles with
// Bc = 80 take more.
double flash_seconds(const Measurement& result) {
  const Case& config = result.config;
  const double n = static_cast<double>(config.integer("q_len")), d = static_cast<double>(config.integer("head_dim"));
  double seconds = 1e-9 * n * n * (d + 20);
  if (config.integer("causal") == 1) seconds *= 0.55;
  if (config.text("dtype") == "bf16") seconds *= 0.5;
  if (config.text("layout") == "bshd") seconds *= 1.02;
  if (config.integer("block_r") > 0) seconds *= 1 + 8.0 / static_cast<double>(config.integer("block_r"));
  if (config.integer("block_c") == 80) seconds *= 1.1;
  return config.text("variant") == "tuned" ? seconds : 30 * seconds;
}

test::MadeUp flash_on(const DeviceInfo& info) {
  return {.spec = flash_experiment(), .device = info, .seconds = flash_seconds, .also = [](Measurement& result) {
            if (!result.work) return;
            const double pct = 100 * result.work->flops / flash_seconds(result) / 3.3e10;
            result.matrix_pct = Estimate{pct, pct * 0.99, pct * 1.01};
          }};
}

TEST(FlashClaimsTest, OfMadeUpResults) {
  const test::MadeUp cpu = flash_on(test::avx2()), gpu = flash_on(test::hopper());
  test::expect_claims({test::Judged(cpu, "quick"), test::Judged(gpu, "quick")},
                      {{"worst_tile", "block_c block_r", "refuted supported"},
                       {"best_tile", "", "inconclusive supported"},
                       {"default_tile", "block_c block_r", "refuted supported"},
                       {"tile_16x64", "block_c block_r", "refuted"},
                       {"bc80", "block_c block_r", "supported"},
                       {"wider_heads", "block_c block_r head_dim", "supported"},
                       {"scaling", "", "supported"},
                       {"bf16", "block_c block_r dtype", "supported"},
                       {"causal", "block_c causal", "refuted supported"},
                       {"layout", "block_c layout", "refuted supported"},
                       {"ladder", "block_c block_r variant", "supported"},
                       {"ceiling", "", "inconclusive refuted supported"},
                       {"ceiling_causal", "", "refuted"},
                       {"ceiling_16_bit", "", "refuted supported"},
                       {"ceiling_16_bit_causal", "", "supported"}});
}

TEST(FlashClaimsTest, PickTheBestAndTheWorstTile) {
  const test::MadeUp made = flash_on(test::avx2());
  int found = 0;
  for (const Duel& duel : duels(made.claims(), made.results("quick"))) {
    if (duel.hypothesis != "worst_tile") continue;
    ++found;
    // By the made-up times the default tile is the best: it has the most rows.
    EXPECT_EQ(duel.baseline.integer("block_r"), duel.baseline.integer("head_dim") == 256 ? 128 : 256);
    EXPECT_NE(duel.baseline.integer("block_c"), 80);
    EXPECT_EQ(duel.contender.key({"block_r", "block_c"}), "block_r=16 block_c=80");
  }
  EXPECT_GE(found, 3);
}

TEST(FlashClaimsTest, TheDefaultTileIsComparedWithTheBestOther) {
  for (const DeviceInfo& info : {test::avx2(), test::hopper()}) {
    const test::MadeUp made = flash_on(info);
    for (const Duel& duel : duels(made.claims(), made.results("quick"))) {
      if (duel.hypothesis != "default_tile") continue;
      Case unnamed;
      for (const auto& [axis, value] : duel.contender.axes()) {
        if (!axis.starts_with("block_")) unnamed.set(axis, value);
      }
      made.spec.complete(unnamed, info);
      EXPECT_EQ(duel.contender, unnamed);
    }
  }
}

TEST(FlashClaimsTest, ConcludeFromTheLongestSequenceAndTheNextBestTile) {
  const test::MadeUp made = flash_on(test::avx2());
  const std::vector<Measurement> results = made.results("quick");
  const auto result_of = [&](const Conclusion& conclusion) {
    return *std::ranges::find(results, conclusion.measurements.at(0), &Measurement::id);
  };
  std::map<std::string, int> found;
  std::map<State, std::string> titles;  // of best_tile
  for (const Conclusion& conclusion : made.conclusions(results)) {
    ++found[conclusion.hypothesis];
    if (conclusion.hypothesis == "ceiling" && conclusion.subject.find("head_dim=128") != std::string::npos &&
        conclusion.values["layout"] == "bhsd") {
      EXPECT_EQ(result_of(conclusion).config.integer("q_len"), 2048);
      EXPECT_NEAR(conclusion.estimate.value, result_of(conclusion).matrix_pct->value, 1e-9);
      EXPECT_NEAR(conclusion.values["ceiling_tflops"].get<double>(), 0.033, 1e-9);
    } else if (conclusion.hypothesis == "scaling") {
      EXPECT_NEAR(conclusion.estimate.value, 2, 0.05) << conclusion.subject;
    } else if (conclusion.hypothesis == "best_tile") {
      const Json &best = conclusion.values["baseline"], &next = conclusion.values["contender"];
      EXPECT_EQ(conclusion.subject.find("block_"), std::string::npos) << conclusion.subject;
      EXPECT_GE(conclusion.estimate.value, 1) << conclusion.subject;
      EXPECT_NE(best["block_c"], 80);
      EXPECT_GE(best["block_r"], next["block_r"]);
      titles[made.verdict(conclusion)] = made.finding(conclusion)["title"];
    }
  }
  EXPECT_GT(found["ceiling"], 0);
  EXPECT_EQ(found["scaling"], 6);  // three values of head_dim, each with and without a causal mask
  EXPECT_GE(found["best_tile"], 3);
  // Tiles that differ only in Bc have equal made-up times, unless Bc is 80. So for some shapes no tile is the fastest.
  EXPECT_TRUE(titles[State::inconclusive].starts_with("No flash attention tile of"));
  EXPECT_EQ(titles[State::supported].find("No "), std::string::npos);
}

TEST(FlashAnswerTest, TheTileFollowsFromTheDevice) {
  const auto answer = [](int64_t best) {  // the device's time grows with the distance of block_r from `best`
    const test::MadeUp made{flash_experiment(), test::avx2(), [&](const Measurement& result) {
                              if (result.config.text("variant") != "tuned") return 1.0;
                              const auto rows = static_cast<double>(result.config.integer("block_r"));
                              return 1e-3 * (1 + 0.1 * std::abs(std::log2(rows / static_cast<double>(best))) +
                                             2e-3 * static_cast<double>(result.config.integer("block_c")));
                            }};
    std::vector<Measurement> results = made.results("quick");
    for (Measurement& result : results) {
      for (Timing& time : result.time) time.ci_lo_s = time.ci_hi_s = time.median_s;
    }
    return test::answer_of(made, results);
  };
  const Json wide = answer(128), narrow = answer(32);
  EXPECT_EQ(test::taken(wide), std::set<std::string>{"128x64"});
  EXPECT_EQ(test::taken(narrow), std::set<std::string>{"32x64"});
  EXPECT_EQ(narrow["rows"][0]["default"]["option"], "256x128");
  EXPECT_NEAR(narrow["rows"][0]["default"]["ratio"].get<double>(), 1.38, 0.02);
}

}  // namespace
}  // namespace attn
