// The claims and the answer on made-up results.
#include "proto2_stitching/claims.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/testing/claims.h"
#include "proto2_stitching/problem.h"
#include "proto2_stitching/sweep.h"

namespace attn {
namespace {

using test::avx2;

// 1 ms for attention, 1 us for each multiply-add of `work`, and 10 ns for each call that the optimiser leaves. The
// device's two units make the calls in parallel.
double stitch_seconds(const Measurement& result) {
  const Case& config = result.config;
  const double seconds = 1e-3 + 1e-6 * static_cast<double>(config.integer("work"));
  if (form_is_inlined(config.text("form"))) return seconds;
  return seconds + 10e-9 * static_cast<double>(count_calls(StitchConfig::from(config, avx2()), avx2()).calls) / 2;
}

const test::MadeUp made{
    .spec = stitch_experiment(), .device = avx2(), .seconds = stitch_seconds, .also = [](Measurement& result) {
      const CallCount count = count_calls(StitchConfig::from(result.config, avx2()), avx2());
      result.values = {{"calls", count.calls}, {"calls_per_tile", count.calls_per_tile}};
      const int left = form_is_inlined(result.config.text("form")) ? 3 : 5;
      result.pipeline = {{"instructions", {{"callq", left}, {"addl", 7}}},
                         {"code_bytes", 6000 + left},
                         {"registers", nullptr},
                         {"spill_bytes", nullptr}};
    }};

TEST(StitchClaimsTest, OfMadeUpResults) {
  test::MadeUp metal = made;
  metal.device = test::metal();
  test::expect_claims({test::Judged(made, "quick"), test::Judged(metal, "quick")},
                      {{"inline", "form", "supported"},
                       {"noinline", "form", "supported"},
                       {"switch", "form", "supported"},
                       {"pointer", "form", "supported"},
                       {"stitched", "form", "supported"},
                       {"stitched_graph", "form", "supported"},
                       {"stitched_nolto", "form", "supported"},
                       {"std_function", "form", "supported"},
                       {"virtual", "form", "supported"},
                       {"inlined_grain", "form grain", "supported"},
                       {"call_per_row", "form grain", "refuted"},
                       {"call_per_tile", "form grain", "refuted"},
                       {"call_ns", "", "refuted"},
                       {"break_even", "form grain", "refuted"},
                       {"stitch_or_constants", "", "supported"}});
}

TEST(StitchClaimsTest, EveryCaseIsComparedWithMonolithic) {
  const std::vector<Measurement> results = made.results("quick");
  const std::vector<Duel> all = duels(made.claims(), results);
  for (const Duel& duel : all) EXPECT_EQ(duel.baseline.text("form"), "monolithic");
  EXPECT_EQ(all.size(), results.size() - 8) << "not one duel for each result except the eight baselines";
}

// in_turn() orders the duels in rounds: first one duel of each hypothesis, then a second duel of each, and so on. All
// duels of `break_even` are in the first round.
TEST(StitchClaimsTest, RoundsHaveOneDuelOfAHypothesisButTheFirstHasAllOfBreakEven) {
  std::map<std::string, int> seen;
  int before = 0;
  for (const Duel& duel : in_turn(made.claims(), duels(made.claims(), made.results("quick")))) {
    const int rank = duel.hypothesis == "break_even" ? 0 : seen[duel.hypothesis]++;
    EXPECT_GE(rank, before) << duel.hypothesis;
    before = std::max(before, rank);
  }
}

TEST(StitchClaimsTest, WrongAndUntimedResultsTakeNoPart) {
  std::vector<Measurement> results = made.results("quick");
  for (Measurement& result : results) {
    if (result.config.text("form") == "noinline") result.status = "wrong";
    if (result.config.text("function") == "scale" && result.config.text("form") == "monolithic") result.time.clear();
  }
  for (const Duel& duel : duels(made.claims(), results)) {
    EXPECT_NE(duel.contender.text("form"), "noinline");
    EXPECT_NE(duel.contender.text("function"), "scale");
  }
}

TEST(StitchClaimsTest, FiguresAreThoseOfTheTwoCases) {
  std::map<std::string, int> found;
  for (const Conclusion& conclusion : made.conclusions(made.results("quick"))) {
    ++found[conclusion.hypothesis];
    const Json& contender = conclusion.values["contender"];
    if (conclusion.hypothesis == "stitched") {
      EXPECT_NEAR(conclusion.values["overhead_pct"].get<double>(), 0, 1e-9);
      EXPECT_EQ(contender["calls_left"], 3);
      EXPECT_EQ(conclusion.values["baseline"]["code_bytes"], 6003);
    } else if (conclusion.hypothesis == "noinline") {
      EXPECT_NEAR(conclusion.estimate.value, (1e-3 + contender["calls"].get<double>() * 10e-9 / 2) / 1e-3, 1e-9);
      EXPECT_NE(conclusion.content.find("calls_left"), std::string::npos);
    } else if (conclusion.hypothesis == "call_ns") {
      EXPECT_NEAR(conclusion.estimate.value, 10, 1e-6) << conclusion.subject;
      EXPECT_FALSE(form_is_inlined(contender["form"])) << conclusion.subject;
    }
  }
  EXPECT_GT(found["stitched"], 0);
  EXPECT_GT(found["noinline"], 0);
  EXPECT_GT(found["call_ns"], 6);
  std::vector<Measurement> results = made.results("quick");
  for (Measurement& result : results) result.pipeline["instructions"] = nullptr;
  for (const Conclusion& conclusion : made.conclusions(results)) {
    EXPECT_EQ(conclusion.content.find("calls_left"), std::string::npos);
  }
}

// The least work from which on calls are cheap: at least this `work`, no ratio is above 1.01.
TEST(StitchClaimsTest, BreakEvenIsTheLeastWorkWithCheapCallsThereAndAbove) {
  const std::vector<Measurement> results = made.results("quick");
  const std::vector<Comparison> all = made.comparisons(results);
  const Estimate high{1.2, 1.19, 1.21}, some{1.05, 1.04, 1.06}, low{1.001, 0.999, 1.002}, one{1, 1, 1};
  struct Row {
    std::vector<Estimate> ratios;  // at work 1, 4, 16 and 64, of calls by row
    double work;
    State verdict;
  };
  for (const auto& [ratios, work, verdict] :
       std::vector<Row>{{{high, some, {1.005, 1.004, 1.006}, low}, 16, State::supported},
                        {{high, some, {1.009, 1.008, 1.012}, low}, 16, State::inconclusive},  // maybe 64
                        {{{1.0, 0.99, 1.005}, some, {1.02, 1.015, 1.03}, low}, 64, State::inconclusive},
                        {{high, high, high, high}, 128, State::refuted},
                        {{one, one, one, one}, 1, State::supported}}) {
    std::vector<Comparison> comparisons;
    for (Comparison comparison : all) {
      if (comparison.hypothesis != "break_even" || comparison.contender.text("grain") != "row") continue;
      const int64_t at = comparison.contender.integer("work");
      comparison.ratio = ratios[at == 1 ? 0 : at == 4 ? 1 : at == 16 ? 2 : 3];
      comparisons.push_back(comparison);
    }
    ASSERT_EQ(comparisons.size(), 4u);
    const Conclusion conclusion = made.conclusions(results, comparisons, "break_even").at(0);
    EXPECT_EQ(conclusion.estimate.value, work);
    EXPECT_EQ(made.verdict(conclusion), verdict) << work;
  }
}

TEST(StitchClaimsTest, TheRuleLooksAtTheWorstFunction) {
  const std::vector<Measurement> results = made.results("quick");
  std::vector<Comparison> comparisons = made.comparisons(results);
  const auto rule = [&] { return made.conclusions(results, comparisons, "stitch_or_constants").at(0); };
  EXPECT_EQ(made.verdict(rule()), State::supported);
  EXPECT_EQ(rule().values["functions"], 3);
  for (Comparison& comparison : comparisons) {
    if (comparison.hypothesis == "stitched" && comparison.contender.text("function") == "soft_cap") {
      comparison.ratio = {1.1, 1.09, 1.11};
    }
  }
  EXPECT_EQ(made.verdict(rule()), State::refuted);
  EXPECT_EQ(rule().values["contender"]["function"], "soft_cap");
  for (Comparison& comparison : comparisons) comparison.ratio = {1.01, 0.95, 1.07};
  EXPECT_EQ(made.verdict(rule()), State::inconclusive);
  std::erase_if(comparisons, [](const Comparison& c) { return c.hypothesis != "stitched"; });
  comparisons.resize(1);
  comparisons[0].hypothesis = "stitch_or_constants";  // as in a replay
  EXPECT_EQ(made.conclusions(results, comparisons).size(), 1u);
}

TEST(CallsLeft, CountsTheCallInstructionsOfEveryDevice) {
  EXPECT_EQ(calls_left({{"instructions", {{"callq", 2}, {"calll", 1}, {"cmpl", 5}}}}), 3);
  EXPECT_EQ(calls_left({{"instructions", {{"bl", 2}, {"blr", 1}, {"b", 5}}}}), 3);
  EXPECT_EQ(calls_left({{"instructions", {{"CALL", 4}, {"RET", 1}}}}), 4);
  EXPECT_EQ(calls_left({{"instructions", {{"addl", 4}}}}), 0);
  EXPECT_EQ(calls_left({{"instructions", nullptr}}), std::nullopt);
  EXPECT_EQ(calls_left(nullptr), std::nullopt);
}

TEST(StitchAnswerTest, TheFastestFormIsTheChoice) {
  EXPECT_TRUE(test::taken_if_fast(stitch_experiment(), "form=noinline grain=row").contains("noinline row"));
  EXPECT_TRUE(test::taken_if_fast(stitch_experiment(), "form=inline grain=element").contains("inline element"));
}

}  // namespace
}  // namespace attn
