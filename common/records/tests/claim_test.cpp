#include "common/records/claim.h"

#include <gtest/gtest.h>

#include <cmath>

#include "common/records/tests/support.h"
#include "common/records/tests/verdict_cases.h"
#include "common/testing/made_up.h"

namespace attn {
namespace {

TEST(Judge, TruthTable) {
  for (const VerdictCase& row : verdict_cases()) {
    const Verdict verdict = judge(hypothesis(row.op, row.threshold), conclusion(row.estimate, row.floor));
    EXPECT_EQ(name(verdict.state), name(row.state))
        << row.estimate.value << " " << row.op << " " << row.threshold << " floor " << row.floor;
    EXPECT_FALSE(verdict.reason.empty());
  }
}

TEST(Judge, SaysWhy) {
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({0.9, 0.88, 0.92})).reason, "0.9, next run [0.88, 0.92], is < 1");
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({1.1, 1.08, 1.12})).reason, "1.1, next run [1.08, 1.12], is not < 1");
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({1, 0.9, 1.1})).reason, "1, next run [0.9, 1.1], crosses 1");
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({0.99, 0.98, 0.995}, 0.02)).reason,
            "0.99, next run [0.98, 0.995], is closer to 1 than the noise floor of 0.02");
  EXPECT_THROW(judge(hypothesis("==", 1), conclusion({1, 1, 1})), std::invalid_argument);
}

// The interval of the mean says where the true figure lies, not where the next run's figure lies.
TEST(Judge, TheNextRunDecides) {
  Conclusion c = conclusion({0.9, 0.7, 1.2});
  c.estimate.ci_lo = 0.88;
  c.estimate.ci_hi = 0.92;
  EXPECT_EQ(judge(hypothesis("<", 1), c).state, State::inconclusive);
}

// A difference of two ratios near 1 is itself near 0, but its noise is as large as the noise of the ratios. So its
// floor is an absolute distance, in the unit of the figure.
TEST(Judge, AFigureThatMayBeNegativeHasAFloorInItsUnit) {
  Conclusion c = conclusion({0.02, 0.019, 0.021}, 0.02);
  EXPECT_EQ(judge(hypothesis("<", 0.03), c).state, State::supported)
      << "the floor must be compared with |log(0.02 / 0.03)|";
  c.relative = false;
  EXPECT_EQ(judge(hypothesis("<", 0.03), c).state, State::inconclusive);
}

TEST(Judge, FewerThanSixRoundsProveNothing) {
  Conclusion c = conclusion({0.9, 0.88, 0.92});
  c.parts = {{1, 0.9, 0.01, 2}, {2, 0.9, 0.01, 3}};
  EXPECT_EQ(judge(hypothesis("<", 1), c).state, State::inconclusive);
  EXPECT_EQ(judge(hypothesis("<", 1), c).reason, "5 rounds are too few for a verdict; at least 6 are needed");
  c.parts[0].rounds = 3;
  EXPECT_EQ(judge(hypothesis("<", 1), c).state, State::supported);
}

TEST(Judge, ACountIsExact) {
  Conclusion c = conclusion({4, 4, 4});
  c.exact = true;
  c.parts.clear();
  const Verdict verdict = judge(hypothesis("<=", 4), c);
  EXPECT_EQ(verdict.state, State::supported);
  EXPECT_EQ(verdict.reason, "4, exact, is <= 4");
  EXPECT_EQ(confidence(hypothesis("<=", 4), verdict, c), 1);
  EXPECT_EQ(judge(hypothesis("<", 4), c).state, State::refuted);
}

TEST(Judge, WarmCachesProveNothingAboutMemory) {
  Conclusion c = conclusion({0.5, 0.49, 0.51});
  c.warm = true;
  const Verdict verdict = judge(hypothesis("<", 1), c);
  EXPECT_EQ(verdict.state, State::inconclusive);
  EXPECT_EQ(verdict.reason,
            "memory limits a case that ran with warm caches, because no flush of the caches works here");
  c.exact = true;
  EXPECT_EQ(judge(hypothesis("<", 1), c).state, State::supported) << "warm caches must not matter for a count";
}

TEST(Judge, AWrongResultProvesNothing) {
  Conclusion c = conclusion({0.5, 0.49, 0.51});
  c.correct = false;
  EXPECT_EQ(judge(hypothesis("<", 1), c).state, State::inconclusive);
}

TEST(Confidence, IsTheProbabilityOfTheSameVerdictUpToACap) {
  const Hypothesis below_one = hypothesis("<", 1);
  const Verdict yes{State::supported, ""};
  EXPECT_EQ(confidence(below_one, yes, conclusion({0.5, 0.49, 0.51})), 0.8) << "the cap must be 0.8 with one session";
  EXPECT_NEAR(confidence(below_one, yes, conclusion({0.9, 0.81, 1})), 0.8, 1e-9)
      << "the interval alone gives 0.975, above the cap";
  EXPECT_NEAR(confidence(below_one, yes, conclusion({0.95, 0.8, 1.128125})), 0.727, 0.01);
  Conclusion several = conclusion({0.5, 0.49, 0.51});
  several.estimate.sessions = 2;
  EXPECT_EQ(confidence(below_one, yes, several), 0.9) << "the cap must be 0.9 with one machine";
  several.unlike_throttling = true;
  EXPECT_EQ(confidence(below_one, yes, several), 0.6);
  Conclusion wrong = several;
  wrong.correct = false;
  EXPECT_EQ(confidence(below_one, {State::inconclusive, ""}, wrong), 0);
  EXPECT_EQ(confidence(below_one, {State::inconclusive, ""}, several), 0.5);
}

TEST(Comparison, FloorIsTheLargerLogarithmOfTheTwoEndsOfTheAaInterval) {
  Comparison comparison;
  comparison.aa = {1.0, 0.97, 1.01};
  EXPECT_NEAR(comparison.aa_floor(), -std::log(0.97), 1e-12);
  comparison.aa = {1.02, 1.01, 1.04};
  EXPECT_NEAR(comparison.aa_floor(), std::log(1.04), 1e-12);
}

// ---- the table of claims

Measurement result(int64_t length, int64_t tile, double seconds, const std::string& variant = "tuned") {
  Measurement made;
  made.config.set("variant", AxisValue(variant));
  made.config.set("q_len", AxisValue(length));
  made.config.set("tile", AxisValue(tile));
  made.id = made.config.key();
  made.time = {Timing{Scope::device_hot, 10, 10, seconds, 0.99 * seconds, 1.01 * seconds, 0.03, seconds, "ci"}};
  return made;
}

// Pairs the fastest tile of a group with every other tile of the group.
std::vector<Results> all_pairs(const Results& tiles) {
  std::vector<Results> picks;
  for (const Measurement* tile : tiles) {
    if (tile != fastest(tiles)) picks.push_back({fastest(tiles), tile});
  }
  return picks;
}

Claim claim() {
  return {.hypothesis = {"tile", "t", "m", ">=", 1.1, "o"},
          .takes = [](const Measurement& r) { return r.config.text("variant") == "tuned"; },
          .varies = {"tile"},
          .at_least = 2,
          .pick = all_pairs,
          .subject = subject_without({"tile"}),
          .title = "{values.baseline.tile} is best",
          .content = "c",
          .advice = {"Choose.", "Do not choose."}};
}

// Returns a text for each duel, such as "q_len=64 tile=32 > tile=16": the baseline, then the contender.
std::vector<std::string> duel_texts(const Claim& about, const std::vector<Measurement>& results) {
  std::vector<std::string> texts;
  for (const Duel& duel : duels({about}, results)) {
    EXPECT_EQ(duel.hypothesis, "tile");
    EXPECT_EQ(duel.baseline.key({"q_len"}), duel.contender.key({"q_len"}));
    texts.push_back(duel.baseline.key({"q_len", "tile"}) + " > " + duel.contender.key({"tile"}));
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST(Claims, APairIsFromOneGroupThatHasEnoughResults) {
  const std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1), result(64, 48, 3), result(128, 16, 1),
                                            result(64, 64, 0.1, "naive")};
  EXPECT_EQ(duel_texts(claim(), results), (Texts{"q_len=64 tile=32 > tile=16", "q_len=64 tile=32 > tile=48"}));
  Claim larger = claim();
  larger.at_least = 4;
  EXPECT_EQ(duel_texts(larger, results), Texts{});
  larger.takes = {};
  larger.varies = {"tile", "variant"};
  EXPECT_EQ(duel_texts(larger, results).size(), 3u) << "results of any variant must take part";
}

TEST(Claims, WrongAndUntimedResultsAreLeftOut) {
  std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1), result(64, 48, 3)};
  results[1].status = "wrong";
  EXPECT_EQ(duel_texts(claim(), results), Texts{"q_len=64 tile=16 > tile=48"});
  results[0].time.clear();
  EXPECT_EQ(duel_texts(claim(), results), Texts{});
}

TEST(Claims, OnlyTheLongestLengthUpToTheLimitIsKept) {
  std::vector<Measurement> results;
  for (const int64_t length : {64, 512, 128}) {
    results.push_back(result(length, 16, 1));
    results.push_back(result(length, 32, 2));
  }
  Claim longest = claim();
  EXPECT_EQ(duel_texts(longest, results).size(), 3u);
  longest.longest = "q_len";
  EXPECT_EQ(duel_texts(longest, results), Texts{"q_len=512 tile=16 > tile=32"});
  longest.limit = 500;
  EXPECT_EQ(duel_texts(longest, results), Texts{"q_len=128 tile=16 > tile=32"});
  longest.limit = 10;
  EXPECT_EQ(duel_texts(longest, results), Texts{});
}

TEST(Claims, PicksOfAnAxis) {
  const std::vector<Measurement> all = {result(64, 16, 3), result(64, 32, 2), result(128, 16, 5), result(128, 32, 6),
                                        result(256, 16, 9)};
  Results group;
  for (const Measurement& r : all) group.push_back(&r);
  using Picks = std::vector<Results>;
  EXPECT_EQ(where(group, "q_len", "64"), (Results{&all[0], &all[1]}));
  EXPECT_EQ(largest(group, "tile"), &all[1]) << "not the fastest of the results with the largest tile";
  EXPECT_EQ(fastest(group), &all[1]);
  EXPECT_EQ(fastest({}), nullptr);
  EXPECT_EQ(pair(group, {}), Picks{});
  EXPECT_EQ(steps("q_len", {{"64", "128"}, {"128", "256"}, {"256", "512"}})(group),
            (Picks{{&all[1], &all[2]}, {&all[2], &all[4]}}));
  EXPECT_EQ(against("q_len", "128")(group), (Picks{{&all[2], &all[0]}, {&all[2], &all[1]}, {&all[2], &all[4]}}));
  EXPECT_EQ(against("q_len", "7")(group), Picks{});
  EXPECT_EQ(fastest_at_each("q_len", 3)(group), (Picks{{&all[1], &all[2], &all[4]}}));
  EXPECT_EQ(fastest_at_each("q_len", 4)(group), Picks{});
  EXPECT_EQ(each(group).size(), 5u);
}

TEST(Claims, FiguresOfTheSweep) {
  const std::vector<Measurement> all = {result(64, 16, 1), result(128, 16, 4), result(256, 16, 16)};
  const Evidence evidence{.results = {&all[0], &all[1], &all[2]}};
  const Estimate ratio = ratio_of_medians(evidence);
  EXPECT_DOUBLE_EQ(ratio.value, 4);
  EXPECT_DOUBLE_EQ(ratio.ci_lo, 4 * 0.99 / 1.01);
  EXPECT_DOUBLE_EQ(ratio.ci_hi, 4 * 1.01 / 0.99);
  EXPECT_EQ(ratio_of_medians({.results = {&all[0], &all[0]}}).ci_hi, 1) << "a result must be as fast as itself";
  EXPECT_NEAR(exponent_over("q_len")(evidence).value, 2, 1e-9);

  Claim sweep = claim();
  sweep.compared = false;
  sweep.varies = {"q_len"};
  sweep.pick = steps("q_len", {{"64", "128"}});
  sweep.figure = ratio_of_medians;
  EXPECT_TRUE(duels({sweep}, all).empty()) << "the claim must ask for no comparison";
  const std::vector<Conclusion> conclusions = conclude({sweep}, all, {});
  ASSERT_EQ(conclusions.size(), 1u);
  EXPECT_EQ(conclusions[0].estimate.value, 4);
  EXPECT_EQ(conclusions[0].floor, 0) << "a floor without a comparison";
  EXPECT_EQ(conclusions[0].cv, 0.03);
  EXPECT_FALSE(conclusions[0].compare);
  EXPECT_EQ(conclusions[0].measurements, (Texts{all[0].id, all[1].id}));
}

std::vector<Comparison> measured(const std::vector<Duel>& asked) {
  std::vector<Comparison> comparisons;
  for (const Duel& duel : asked) {
    Comparison made;
    made.hypothesis = duel.hypothesis;
    made.baseline = duel.baseline;
    made.contender = duel.contender;
    made.ratio = {1.2, 1.19, 1.21};
    made.aa = {1, 0.99, 1.01};
    made.cv = 0.02;
    made.time = {timing(Scope::device_hot, 1e-3), timing(Scope::device_hot, 1.2e-3)};
    comparisons.push_back(made);
  }
  return comparisons;
}

TEST(Claims, AComparisonBecomesAConclusion) {
  std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1)};
  std::vector<Comparison> comparisons = measured(duels({claim()}, results));
  comparisons.push_back(comparisons[0]);
  comparisons[1].hypothesis = "other";
  const std::vector<Conclusion> conclusions = conclude({claim()}, results, comparisons, test::steady_processes());
  ASSERT_EQ(conclusions.size(), 1u) << "a comparison for another claim must not count";
  const Conclusion& found = conclusions[0];
  EXPECT_EQ(found.subject, "variant=tuned q_len=64");
  EXPECT_EQ(found.estimate.value, 1.2);
  EXPECT_NEAR(found.floor, -std::log(0.99), 1e-12);
  EXPECT_EQ(found.cv, 0.02);
  EXPECT_EQ(found.values["baseline"]["tile"], 32);
  EXPECT_EQ(found.values["contender"]["tile"], 16);
  EXPECT_EQ(found.measurements, (Texts{results[1].id, results[0].id}));
  EXPECT_TRUE(found.correct);
  EXPECT_EQ(judge(claim().hypothesis, found).state, State::supported);

  results.push_back(results[0]);
  results[2].status = "failed";  // the case failed in a later comparison
  EXPECT_FALSE(conclude({claim()}, results, comparisons).at(0).correct);
  EXPECT_TRUE(conclude({claim()}, {results[1]}, comparisons).empty())
      << "a conclusion without a record of the contender";
}

TEST(Claims, SeveralComparisonsForOneConclusion) {
  const std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1), result(64, 48, 3)};
  std::vector<Comparison> comparisons = measured(duels({claim()}, results));
  ASSERT_EQ(comparisons.size(), 2u);
  comparisons[0].cv = 0.04;
  comparisons[1].ratio.value = 1.3;
  Claim worst = claim();
  worst.gather = [](const std::vector<Comparison>& all) {
    return std::vector<std::vector<const Comparison*>>{{&all[0], &all[1]}};
  };
  worst.complete = [](Conclusion& c, const Evidence& evidence) { c.values["pairs"] = evidence.comparisons.size(); };
  const Conclusion found = conclude({worst}, results, comparisons).at(0);
  EXPECT_EQ(found.estimate.value, 1.3) << "the figure must be the ratio of the last comparison";
  EXPECT_EQ(found.cv, 0.04) << "the cv must be the largest of the comparisons";
  EXPECT_EQ(found.values["pairs"], 2);
  EXPECT_EQ(found.measurements.size(), 4u);
  worst.figure = [](const Evidence& evidence) -> Estimate { return {evidence.comparisons[0]->cv, 0, 1}; };
  EXPECT_EQ(conclude({worst}, results, comparisons).at(0).estimate.value, 0.04);
  EXPECT_EQ(conclude({worst}, results, comparisons).at(0).floor, 0)
      << "a floor, although the figure does not depend on the ratios";
  worst.figure = [](const Evidence& evidence) -> Estimate {
    const double more = 100 * (evidence.comparisons[1]->ratio.value - 1);
    return {more, more, more};
  };
  EXPECT_NEAR(conclude({worst}, results, comparisons).at(0).floor, 130 * (1 / 0.99 - 1), 1e-9)
      << "the floor must be in per cent, as the figure is";
}

/// Returns `whole` with a part for each of `ratios`, as if one process had measured each ratio.
Comparison by_processes(const Comparison& whole, const std::vector<double>& ratios) {
  Comparison pooled = whole;
  for (const double ratio : ratios) {
    Comparison& part = pooled.parts.emplace_back(whole);
    part.process = static_cast<int>(pooled.parts.size());
    part.ratio = {ratio, 0.999 * ratio, 1.001 * ratio};
  }
  return pooled;
}

TEST(Claims, ComparisonsOfProcessesArePooled) {
  const std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1)};
  const Comparison whole = measured(duels({claim()}, results)).at(0);
  const Processes processes = test::steady_processes();
  const Conclusion alike = conclude({claim()}, results, {by_processes(whole, {1.2, 1.201, 1.199})}, processes).at(0);
  EXPECT_EQ(alike.parts.size(), 3u);
  EXPECT_EQ(alike.estimate.processes, 3);
  EXPECT_NEAR(alike.estimate.value, 1.2, 1e-6);
  EXPECT_EQ(judge(claim().hypothesis, alike).state, State::supported);
  const Conclusion apart = conclude({claim()}, results, {by_processes(whole, {1.2, 2.4, 0.6})}, processes).at(0);
  EXPECT_NEAR(apart.estimate.value, 1.2, 1e-6);
  EXPECT_EQ(judge(claim().hypothesis, apart).state, State::inconclusive)
      << "a verdict, although the processes disagree";

  Claim percent = claim();
  percent.figure = [](const Evidence& evidence) -> Estimate {
    const auto& [value, lo, hi] = evidence.comparisons.back()->ratio;
    return {100 * (value - 1), 100 * (lo - 1), 100 * (hi - 1)};
  };
  const Conclusion more = conclude({percent}, results, {by_processes(whole, {1.1, 1.2, 1.3})}, processes).at(0);
  EXPECT_NEAR(more.estimate.value, 20, 1e-9) << "the figure must be the mean of the processes' figures";
  EXPECT_FALSE(more.relative);
  EXPECT_NEAR(more.parts[2].value, 30, 1e-9);
}

TEST(Claims, AProcessThatLacksAComparisonGivesNoFigure) {
  const std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1), result(64, 48, 3)};
  std::vector<Comparison> comparisons = measured(duels({claim()}, results));
  comparisons = {by_processes(comparisons[0], {1.1, 1.2, 1.3}), by_processes(comparisons[1], {2.1, 2.2, 2.3})};
  comparisons[0].parts.erase(comparisons[0].parts.begin());
  comparisons[1].parts.erase(comparisons[1].parts.begin() + 1);
  Claim sum = claim();
  sum.gather = [](const std::vector<Comparison>& all) {
    return std::vector<std::vector<const Comparison*>>{{&all[0], &all[1]}};
  };
  sum.figure = [](const Evidence& evidence) -> Estimate {
    const double value = evidence.comparisons[0]->ratio.value + evidence.comparisons[1]->ratio.value;
    return {value, value, value};
  };
  const Conclusion found = conclude({sum}, results, comparisons, test::steady_processes()).at(0);
  ASSERT_EQ(found.parts.size(), 1u);
  EXPECT_EQ(found.parts[0].process, 3);
  EXPECT_NEAR(found.parts[0].value, 1.3 + 2.3, 1e-12);
}

TEST(Claims, FiguresOfTheSweepAreMeasuredAgainInProcesses) {
  const std::vector<Measurement> sweep = {result(64, 16, 1), result(128, 16, 3), result(256, 32, 7)};
  Claim about = claim();
  about.compared = false;
  about.takes = {};
  about.varies = {"q_len"};
  about.pick = steps("q_len", {{"64", "128"}});
  about.figure = ratio_of_medians;
  about.complete = [](Conclusion& c, const Evidence& evidence) { c.values["s"] = seconds(*evidence.results.back()); };
  EXPECT_EQ(cases_of_claims({about}, sweep), (std::vector<Case>{sweep[0].config, sweep[1].config}));
  Processes processes = test::steady_processes();
  processes.results = {{result(64, 16, 1), result(128, 16, 2)},
                       {result(128, 16, 2.2), result(64, 16, 1)},
                       {result(64, 16, 1)},  // this process lacks a case
                       {result(64, 16, 1), result(128, 16, 1.8)}};
  const Conclusion found = conclude({about}, sweep, {}, processes).at(0);
  EXPECT_EQ(found.parts.size(), 3u);
  EXPECT_NEAR(found.estimate.value, std::cbrt(2 * 2.2 * 1.8), 1e-9)
      << "the figure must not be the ratio of 3 that the sweep found";
  EXPECT_EQ(found.values["s"], 2.0) << "the value must come from the process whose figure is the median";
  about.measured_again = false;
  EXPECT_TRUE(cases_of_claims({about}, sweep).empty());
  EXPECT_EQ(conclude({about}, sweep, {}, processes).at(0).parts.size(), 1u) << "only the sweep may give a figure";
  about.measured_again = true;
  about.exact = true;
  EXPECT_TRUE(cases_of_claims({about}, sweep).empty()) << "a count must not be measured again";
}

TEST(Claims, WarmTimesOfMemoryBoundCasesAreNoted) {
  std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1)};
  std::vector<Comparison> comparisons = measured(duels({claim()}, results));
  const auto warm = [&](const Claim& about) { return conclude({about}, results, comparisons).at(0).warm; };
  Claim sweep = claim();
  sweep.compared = false;
  sweep.figure = ratio_of_medians;
  EXPECT_FALSE(warm(claim()));
  EXPECT_FALSE(warm(sweep));
  results[0].work = Work{.flops = 1, .bytes = 1, .bound = Bound::memory};
  EXPECT_TRUE(warm(claim()));
  EXPECT_TRUE(warm(sweep));
  for (Timing& time : comparisons[0].time) time.scope = Scope::device_cold;
  EXPECT_FALSE(warm(claim()));
  comparisons = {by_processes(comparisons[0], {1.2, 1.2})};
  EXPECT_FALSE(warm(claim()));
  comparisons[0].parts[1].time[0].scope = Scope::device_hot;
  EXPECT_TRUE(warm(claim())) << "did not note the process in which no flush worked";
  results[0].time.push_back(timing(Scope::device_cold, 2));
  EXPECT_FALSE(warm(sweep));
}

TEST(Claims, ThrottlingOfOnlyOneCaseOfAPairIsNoted) {
  std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1)};
  const std::vector<Comparison> comparisons = measured(duels({claim()}, results));
  results[0].clocks = results[1].clocks = {{"throttle_reasons", {"power"}}};
  EXPECT_FALSE(conclude({claim()}, results, comparisons).at(0).unlike_throttling);
  results[1].clocks = {{"throttle_reasons", Json::array()}};
  EXPECT_TRUE(conclude({claim()}, results, comparisons).at(0).unlike_throttling);
}

}  // namespace
}  // namespace attn
