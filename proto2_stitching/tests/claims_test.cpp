// Runs the claims on made-up results: the claims choose duels (pairs of cases that are measured again) and draw
// conclusions.
#include "proto2_stitching/claims.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/experiment/experiment.h"
#include "common/records/finding.h"
#include "common/testing/advice.h"
#include "common/testing/devices.h"
#include "common/testing/made_up.h"
#include "proto2_stitching/problem.h"
#include "proto2_stitching/sweep.h"

namespace attn {
namespace {

using test::avx2;

// Returns the time that a model gives to a case: 1 ms for attention, 1 us for each multiply-add of `work`, and 10 ns
// for each call that the optimiser leaves. The device's two units make the calls in parallel.
double seconds_of(const Case& config) {
  const double work = 1e-6 * static_cast<double>(config.integer("work"));
  if (form_is_inlined(config.text("form"))) return 1e-3 + work;
  const StitchConfig stitch = StitchConfig::from(config, avx2());
  return 1e-3 + work + 10e-9 * static_cast<double>(count_calls(stitch, avx2()).calls) / 2;
}

// Returns results of the quick sweep, with the times of the model.
std::vector<Measurement> made_up() {
  std::vector<Measurement> results;
  const std::vector<Case> cases =
      expand(stitch_sweep("quick", avx2()), stitch_axes(), [&](Case& c) { complete_stitch(c, avx2()); });
  for (const Case& config : cases) {
    Measurement result;
    result.id = fmt::format("{:016x}", results.size());
    result.config = config;
    result.check = Check{};
    const CallCount count = count_calls(StitchConfig::from(config, avx2()), avx2());
    result.values = {{"calls", count.calls}, {"calls_per_tile", count.calls_per_tile}};
    const int left = form_is_inlined(config.text("form")) ? 3 : 5;
    result.pipeline = {{"instructions", {{"callq", left}, {"addl", 7}}},
                       {"code_bytes", 6000 + left},
                       {"registers", nullptr},
                       {"spill_bytes", nullptr}};
    const double seconds = seconds_of(config);
    result.time = {Timing{Scope::device_hot, 10, 10, seconds, seconds, seconds, 0.01, seconds, "ci"}};
    results.push_back(result);
  }
  return results;
}

// Returns the comparisons that the measuring loop would give, with intervals from ratio - `spread` to ratio + `spread`.
std::vector<Comparison> compare(const std::vector<Duel>& duels, double spread = 0.002) {
  std::vector<Comparison> comparisons;
  for (const Duel& duel : duels) {
    Comparison comparison;
    comparison.hypothesis = duel.hypothesis;
    comparison.baseline = duel.baseline;
    comparison.contender = duel.contender;
    const double base = seconds_of(duel.baseline), ratio = seconds_of(duel.contender) / base;
    comparison.ratio = {ratio, ratio - spread, ratio + spread};
    comparison.aa = {1, 0.999, 1.001};
    comparison.cv = 0.01;
    for (const double seconds : {base, base * ratio}) {
      comparison.time.push_back({Scope::device_hot, 10, 10, seconds, seconds, seconds, 0.01, seconds, "ci"});
    }
    comparisons.push_back(comparison);
  }
  return comparisons;
}

std::vector<Duel> stitch_duels(const std::vector<Measurement>& results) {
  return in_turn(stitch_claims(), duels(stitch_claims(), results));
}

std::vector<Conclusion> stitch_conclusions(const std::vector<Measurement>& results,
                                           const std::vector<Comparison>& comparisons, uint32_t units) {
  return conclude(stitch_claims(units), results, comparisons, test::steady_processes());
}

const Hypothesis& hypothesis(const std::string& id) {
  static const std::vector<Hypothesis> all = hypotheses(stitch_claims());
  return *std::find_if(all.begin(), all.end(), [&](const Hypothesis& h) { return h.id == id; });
}

std::vector<Conclusion> conclusions_of(const std::string& id, const std::vector<Conclusion>& all) {
  std::vector<Conclusion> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found),
               [&](const Conclusion& conclusion) { return conclusion.hypothesis == id; });
  return found;
}

std::vector<Conclusion> conclusions() {
  const std::vector<Measurement> results = made_up();
  return stitch_conclusions(results, compare(stitch_duels(results)), 2);
}

TEST(StitchDuelsTest, CompareWithMonolithicAndVaryOnlyFormAndGrain) {
  std::set<std::string> seen;
  const std::vector<Duel> duels = stitch_duels(made_up());
  for (const Duel& duel : duels) {
    seen.insert(duel.hypothesis);
    EXPECT_EQ(duel.baseline.text("form"), "monolithic");
    EXPECT_NE(duel.contender.text("form"), "monolithic");
    for (const auto& [axis, value] : duel.baseline.axes()) {
      if (axis == "form" || axis == "grain") continue;
      EXPECT_EQ(duel.contender.json()[axis], duel.baseline.json()[axis]) << axis;
    }
  }
  EXPECT_EQ(duels.size(), made_up().size() - 8) << "not one duel for each result except the eight baselines";
  std::set<std::string> registered;
  for (const Hypothesis& h : hypotheses(stitch_claims())) registered.insert(h.id);
  for (const char* computed : {"call_ns", "stitch_or_constants"}) registered.erase(computed);
  EXPECT_EQ(seen, registered);
}

// in_turn() orders the duels in rounds: first one duel of each hypothesis, then a second duel of each, and so on. All
// duels of `break_even` are in the first round.
TEST(StitchDuelsTest, RoundsHaveOneDuelOfAHypothesisButTheFirstHasAllOfBreakEven) {
  std::map<std::string, int> seen;
  int before = 0;
  for (const Duel& duel : stitch_duels(made_up())) {
    const int rank = duel.hypothesis == "break_even" ? 0 : seen[duel.hypothesis]++;
    EXPECT_GE(rank, before) << duel.hypothesis;
    before = std::max(before, rank);
  }
}

TEST(StitchDuelsTest, WrongAndUntimedResultsTakeNoPart) {
  std::vector<Measurement> results = made_up();
  for (Measurement& result : results) {
    if (result.config.text("form") == "noinline") result.status = "wrong";
    if (result.config.text("function") == "scale" && result.config.text("form") == "monolithic") result.time.clear();
  }
  for (const Duel& duel : stitch_duels(results)) {
    EXPECT_NE(duel.contender.text("form"), "noinline");
    EXPECT_NE(duel.contender.text("function"), "scale");
  }
  EXPECT_TRUE(stitch_conclusions(results, {}, 2).empty());
}

TEST(StitchConclusionsTest, EveryHypothesisIsJudgedAndEveryTextRenders) {
  std::set<std::string> judged, claims;
  for (const Conclusion& conclusion : conclusions()) {
    judged.insert(conclusion.hypothesis);
    const Json finding = make_finding("proto2_stitching", "test", hypothesis(conclusion.hypothesis), conclusion, "r");
    for (const char* field : {"title", "content"}) {
      EXPECT_EQ(finding[field].get<std::string>().find_first_of("{}"), std::string::npos) << finding[field];
    }
    EXPECT_FALSE(conclusion.measurements.empty()) << conclusion.hypothesis;
    EXPECT_EQ(std::set(conclusion.tags.begin(), conclusion.tags.end()).size(), conclusion.tags.size());
    EXPECT_TRUE(claims.insert(finding["claim_key"]).second)
        << "two findings have the claim_key " << finding["claim_key"];
  }
  EXPECT_EQ(judged.size(), hypotheses(stitch_claims()).size());
}

TEST(StitchConclusionsTest, HaveTheRatioAndTheFiguresOfTheirTwoCases) {
  const std::vector<Conclusion> all = conclusions();
  for (const Conclusion& conclusion : conclusions_of("stitched", all)) {
    EXPECT_EQ(judge(hypothesis("stitched"), conclusion).state, State::supported);
    EXPECT_NEAR(conclusion.values["overhead_pct"].get<double>(), 0, 1e-9);
    EXPECT_EQ(conclusion.values["contender"]["calls_left"], 3);
    EXPECT_EQ(conclusion.values["baseline"]["code_bytes"], 6003);
  }
  for (const Conclusion& conclusion : conclusions_of("noinline", all)) {
    const double calls = conclusion.values["contender"]["calls"];
    EXPECT_NEAR(conclusion.estimate.value, (1e-3 + calls * 10e-9 / 2) / 1e-3, 1e-9);
    EXPECT_EQ(judge(hypothesis("noinline"), conclusion).state, State::supported);
    EXPECT_NE(conclusion.content.find("calls_left"), std::string::npos);
  }
}

TEST(StitchConclusionsTest, ACallCostsWhatTheModelSays) {
  const std::vector<Conclusion> calls = conclusions_of("call_ns", conclusions());
  EXPECT_GT(calls.size(), 6u);
  std::set<std::string> grains;
  for (const Conclusion& conclusion : calls) {
    EXPECT_NEAR(conclusion.estimate.value, 10, 1e-6) << conclusion.subject;
    EXPECT_LT(conclusion.estimate.ci_lo, 10);
    EXPECT_GT(conclusion.estimate.ci_hi, 10);
    EXPECT_FALSE(form_is_inlined(conclusion.values["contender"]["form"])) << conclusion.subject;
    grains.insert(conclusion.values["contender"]["grain"]);
  }
  EXPECT_EQ(grains.size(), 3u);
}

TEST(StitchConclusionsTest, TextsRenderWithoutFiguresOfTheMachineCode) {
  std::vector<Measurement> results = made_up();
  for (Measurement& result : results) result.pipeline["instructions"] = nullptr;
  for (const Conclusion& conclusion : stitch_conclusions(results, compare(stitch_duels(results)), 2)) {
    EXPECT_EQ(conclusion.content.find("calls_left"), std::string::npos);
    EXPECT_NO_THROW(
        render(conclusion.content, {{"values", conclusion.values},
                                    {"estimate", {{"value", 1.0}, {"ci_lo", 1.0}, {"ci_hi", 1.0}}},
                                    {"compare", {{"ratio", 1.0}, {"ci_lo", 1.0}, {"ci_hi", 1.0}, {"aa_floor", 0.1}}}}));
  }
}

// Returns the conclusion of `break_even` for calls by row. `points` has pairs of a value of `work` and a ratio (time
// with calls / time of `monolithic`).
Conclusion break_even(const std::vector<std::pair<int64_t, Estimate>>& points) {
  const std::vector<Measurement> results = made_up();
  std::vector<Comparison> comparisons;
  for (Comparison& comparison : compare(stitch_duels(results))) {
    if (comparison.hypothesis != "break_even" || comparison.contender.text("grain") != "row") continue;
    for (const auto& [work, ratio] : points) {
      if (comparison.contender.integer("work") != work) continue;
      comparison.ratio = ratio;
      comparisons.push_back(comparison);
    }
  }
  EXPECT_EQ(comparisons.size(), points.size());
  return conclusions_of("break_even", stitch_conclusions(results, comparisons, 2)).at(0);
}

TEST(StitchConclusionsTest, BreakEvenIsTheLeastWorkWithCheapCallsThereAndAbove) {
  const Conclusion some = break_even(
      {{1, {1.2, 1.19, 1.21}}, {4, {1.05, 1.04, 1.06}}, {16, {1.009, 1.008, 1.012}}, {64, {1.001, 0.999, 1.002}}});
  EXPECT_EQ(some.estimate.value, 16);
  ASSERT_EQ(some.parts.size(), 1u);
  EXPECT_NEAR(some.parts[0].error, (64 - 16) / 2 / 1.96, 1e-9)
      << "the error must reach to work=64, because the interval at work=16 reaches above 1.01";
  EXPECT_EQ(some.measurements.size(), 8u);
  const Conclusion sure = break_even(
      {{1, {1.2, 1.19, 1.21}}, {4, {1.05, 1.04, 1.06}}, {16, {1.005, 1.004, 1.006}}, {64, {1.001, 0.999, 1.002}}});
  EXPECT_EQ(sure.estimate.value, 16);
  EXPECT_EQ(judge(hypothesis("break_even"), sure).state, State::supported);
  // A ratio of at most 1.01 does not count if the ratio at a larger `work` is above 1.01.
  const Conclusion lucky = break_even(
      {{1, {1.0, 0.99, 1.005}}, {4, {1.05, 1.04, 1.06}}, {16, {1.02, 1.015, 1.03}}, {64, {1.0, 0.999, 1.002}}});
  EXPECT_EQ(lucky.estimate.value, 64);
  const Conclusion never =
      break_even({{1, {1.2, 1.19, 1.21}}, {4, {1.2, 1.19, 1.21}}, {16, {1.2, 1.19, 1.21}}, {64, {1.2, 1.19, 1.21}}});
  EXPECT_EQ(never.estimate.value, 128);
  EXPECT_EQ(judge(hypothesis("break_even"), never).state, State::refuted);
  EXPECT_NE(never.title.find("more than 1 %"), std::string::npos);
  const Conclusion always = break_even({{1, {1, 1, 1}}, {4, {1, 1, 1}}, {16, {1, 1, 1}}, {64, {1, 1, 1}}});
  EXPECT_EQ(always.estimate.value, 1);
  EXPECT_EQ(always.parts.at(0).error, 0);
}

TEST(StitchConclusionsTest, TheRuleLooksAtTheWorstFunction) {
  const std::vector<Measurement> results = made_up();
  std::vector<Comparison> comparisons = compare(stitch_duels(results));
  const auto rule = [&] {
    return conclusions_of("stitch_or_constants", stitch_conclusions(results, comparisons, 2)).at(0);
  };
  const auto advice = [&]() -> std::string {
    return make_finding("proto2_stitching", "test", hypothesis("stitch_or_constants"), rule(), "r")["data"]["advice"];
  };
  EXPECT_EQ(advice(), "Link score functions in before the optimiser.");
  EXPECT_EQ(rule().values["functions"], 3);
  for (Comparison& comparison : comparisons) {
    if (comparison.hypothesis == "stitched" && comparison.contender.text("function") == "soft_cap") {
      comparison.ratio = {1.1, 1.09, 1.11};
    }
  }
  EXPECT_EQ(advice(), "Compile a kernel for each score function.");
  EXPECT_EQ(rule().values["contender"]["function"], "soft_cap");
  EXPECT_EQ(judge(hypothesis("stitch_or_constants"), rule()).state, State::refuted);
  for (Comparison& comparison : comparisons) comparison.ratio = {1.01, 0.95, 1.07};
  EXPECT_EQ(advice(), "") << "an undecided rule gives advice";
}

TEST(CallsLeft, CountsTheCallInstructionsOfEveryDevice) {
  EXPECT_EQ(calls_left({{"instructions", {{"callq", 2}, {"calll", 1}, {"cmpl", 5}}}}), 3);
  EXPECT_EQ(calls_left({{"instructions", {{"bl", 2}, {"blr", 1}, {"b", 5}}}}), 3);
  EXPECT_EQ(calls_left({{"instructions", {{"CALL", 4}, {"RET", 1}}}}), 4);
  EXPECT_EQ(calls_left({{"instructions", {{"addl", 4}}}}), 0);
  EXPECT_EQ(calls_left({{"instructions", nullptr}}), std::nullopt);
  EXPECT_EQ(calls_left(nullptr), std::nullopt);
}

TEST(StitchHypothesesTest, HaveDistinctIdsAndKnownOperators) {
  std::set<std::string> ids;
  for (const Hypothesis& h : hypotheses(stitch_claims())) {
    EXPECT_TRUE(ids.insert(h.id).second);
    EXPECT_TRUE((std::set<std::string>{"<", "<=", ">", ">="}.contains(h.op)));
    EXPECT_FALSE(h.origin.empty());
  }
  EXPECT_GE(ids.size(), 4u);
}

// For each claim the table has words of the advice for a figure below the claim's threshold, and words of the advice
// for a figure above the threshold.
TEST(StitchClaimsTest, AdviceFitsFiguresBelowAndAboveTheThreshold) {
  using test::Choice;
  test::expect_advice(
      stitch_claims(),
      {
          {"inline",
           {"Divide code into inlined helpers", Choice::second},
           {"Write the function's text in place", Choice::first},
           true},
          {"noinline", {"Weigh a call of a function for every"}, {"Do not call a function for every", Choice::first}},
          {"switch",
           {"Choose the function by a branch", Choice::second},
           {"Compile the choice of the function in", Choice::first},
           true},
          {"pointer",
           {"Weigh a call of a function through a table"},
           {"Do not call a function through a table", Choice::first}},
          {"stitched",
           {"Link this function in before the optimiser", Choice::second},
           {"Compile this function's text with the kernel", Choice::first},
           true},
          {"stitched_nolto",
           {"Weigh a call of linked machine code"},
           {"Do not call linked machine code", Choice::first}},
          {"std_function", {"Weigh a call of a std::function"}, {"Do not call a std::function", Choice::first}},
          {"virtual", {"Weigh a call of a virtual function"}, {"Do not call a virtual function", Choice::first}},
          {"inlined_grain",
           {"as many scores as is convenient", Choice::second},
           {"take one score", Choice::first},
           true},
          {"call_per_row",
           {"Call a function once for a row", Choice::second},
           {"Expect a call for every row of scores to take more than 1.05"},
           true},
          {"call_per_tile",
           {"Call a function once for a tile", Choice::second},
           {"Expect a call for every tile of scores to take more than 1.01"},
           true},
          {"call_ns", {"Count at most 5 ns"}, {"Count more than 5 ns"}},
          {"break_even", {"Call a function that does 64 multiply-adds"}, {"Do not expect 64 multiply-adds"}},
          {"stitch_or_constants",
           {"Link score functions in before the optimiser", Choice::second},
           {"Compile a kernel for each score function", Choice::first},
           true},
      });
}

TEST(StitchClaimsTest, AReplayedPairIsJudgedByTheReplayedHypothesisAlone) {
  const std::vector<Measurement> results = made_up();
  std::vector<Comparison> comparisons = compare(stitch_duels(results));
  std::erase_if(comparisons, [](const Comparison& c) { return c.hypothesis != "stitched"; });
  comparisons.resize(1);
  comparisons[0].hypothesis = "stitch_or_constants";
  const std::vector<Conclusion> rule = stitch_conclusions(results, comparisons, 2);
  ASSERT_EQ(rule.size(), 1u);
  EXPECT_EQ(rule[0].hypothesis, "stitch_or_constants");
}

}  // namespace
}  // namespace attn
