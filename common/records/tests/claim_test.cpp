#include "common/records/claim.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <tuple>
#include <vector>

#include "common/records/tests/support.h"
#include "common/testing/made_up.h"

namespace attn {
namespace {

/// A figure with the interval of the next run, and the verdict that follows.
struct VerdictCase {
  const char* op;
  double threshold;
  Estimate estimate;
  double floor;
  State state;
  const char* why = "";  // a part of the reason
  std::function<void(Conclusion&)> change = {};
};

TEST(Judge, TruthTable) {
  constexpr State yes = State::supported, no = State::refuted, open = State::inconclusive;
  const double nan = std::nan("");
  const auto rounds = [](int first, int second) {
    return [=](Conclusion& c) { c.parts = {{1, 0.9, 0.01, first}, {2, 0.9, 0.01, second}}; };
  };
  const auto linear = [](Conclusion& c) { c.relative = false; };
  const auto warm = [](Conclusion& c) { c.warm = true; };
  const auto exact = [](Conclusion& c) {
    c.exact = c.warm = true;
    c.parts.clear();
  };
  for (const VerdictCase& row : std::vector<VerdictCase>{
           // The interval lies on one side of the threshold.
           {"<", 1, {0.90, 0.88, 0.92}, 0, yes, "0.9, next run [0.88, 0.92], is < 1"},
           {"<", 1, {1.10, 1.08, 1.12}, 0, no, "is not < 1"},
           {">", 1, {0.90, 0.88, 0.92}, 0, no},
           {">", 1, {1.10, 1.08, 1.12}, 0, yes},
           // The interval of the next run crosses the threshold, although the interval of the mean does not.
           {"<", 1, {0.99, 0.97, 1.01}, 0, open, "crosses 1"},
           {">=", 1, {1.20, 0.99, 1.40}, 0, open},
           {"<", 1, {0.9, 0.7, 1.2}, 0, open, "", [](Conclusion& c) { c.estimate.ci_hi = 0.92; }},
           // An end of the interval is the threshold: the operator decides.
           {"<", 1, {0.95, 0.90, 1.00}, 0, open},
           {"<=", 1, {0.95, 0.90, 1.00}, 0, yes},
           {">", 1, {1.05, 1.00, 1.10}, 0, open},
           {">=", 1, {1.05, 1.00, 1.10}, 0, yes},
           {"<", 1, {1.05, 1.00, 1.10}, 0, no},
           {">", 1, {0.95, 0.90, 1.00}, 0, no},
           // The estimate must be at least the noise floor away from the threshold.
           {"<", 1, {0.985, 0.98, 0.99}, 0.02, open, "is closer to 1 than the noise floor of 0.02"},
           {"<", 1, {0.975, 0.97, 0.98}, 0.02, yes},
           {">", 1, {1.015, 1.01, 1.02}, 0.02, open},
           // The distance to the threshold counts, not the distance to 1: a ratio near 1 refutes the claim of a large
           // effect.
           {">=", 1.1, {1.001, 0.998, 1.004}, 0.02, no},
           {">=", 1.1, {1.115, 1.11, 1.12}, 0.02, open},
           // The floor is relative: 0.02 at a ratio of 1 is 0.04 at a ratio of 2. A figure that is pooled as it is,
           // such
           // as a difference of two ratios near 1, has a floor in its own unit.
           {">", 2, {2.03, 2.02, 2.04}, 0.02, open},
           {">", 2, {2.05, 2.04, 2.06}, 0.02, yes},
           {"<", 0.03, {0.02, 0.019, 0.021}, 0.02, yes},
           {"<", 0.03, {0.02, 0.019, 0.021}, 0.02, open, "", linear},
           // Without an interval the verdict is inconclusive.
           {"<", 1, {0.9, nan, 0.92}, 0, open},
           {"<", 1, {0.9, nan, nan}, 0, open},
           {"<", 1, {0.9, 0.88, 0.92}, 0, open, "5 rounds are too few", rounds(2, 3)},
           {"<", 1, {0.9, 0.88, 0.92}, 0, yes, "", rounds(3, 3)},
           {"<", 1, {0.5, 0.49, 0.51}, 0, open, "warm caches", warm},
           {"<", 1, {0.5, 0.49, 0.51}, 0, open, "failed its check", [](Conclusion& c) { c.correct = false; }},
           {"<",
            1,
            {0.5, 0.49, 0.51},
            0,
            open,
            "failed: 5 TFLOP/s is above",
            [](Conclusion& c) { c.correct = false, c.fault = "failed: 5 TFLOP/s is above the ceiling of 4"; }},
           // A count is exact, and caches do not matter for it.
           {"<=", 4, {4, 4, 4}, 0, yes, "4, exact, is <= 4", exact},
           {"<", 4, {4, 4, 4}, 0, no, "", exact}}) {
    Conclusion c = conclusion(row.estimate, row.floor);
    if (row.change) row.change(c);
    const Verdict verdict = judge(hypothesis(row.op, row.threshold), c);
    EXPECT_EQ(name(verdict.state), name(row.state))
        << row.estimate.value << " " << row.op << " " << row.threshold << " floor " << row.floor;
    EXPECT_FALSE(verdict.reason.empty());
    EXPECT_NE(verdict.reason.find(row.why), std::string::npos) << verdict.reason;
  }
  EXPECT_THROW(judge(hypothesis("==", 1), conclusion({1, 1, 1})), std::invalid_argument);
}

TEST(Wrong, IsTheProbabilityOfTheOtherSide) {
  // The estimates of conclusion() have 30 degrees of freedom: the end of the interval has a probability of 2.5 %.
  for (const auto& [next, expected] : std::vector<std::pair<Estimate, double>>{
           {{0.5, 0.49, 0.51}, 0}, {{0.9, 0.81, 1}, 0.025}, {{0.95, 0.8, 1.128125}, 0.2733}, {{1, 0.8, 1.25}, 0.5}}) {
    Conclusion c = conclusion(next);
    EXPECT_NEAR(wrong(hypothesis("<", 1), c), expected, 1e-3);
    c.exact = true;
    EXPECT_EQ(wrong(hypothesis("<", 1), c), 0);
    c.correct = false;
    EXPECT_EQ(wrong(hypothesis("<", 1), c), 1);
  }
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
          .content = "c"};
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
  std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1), result(64, 48, 3), result(128, 16, 1),
                                      result(64, 64, 0.1, "naive")};
  EXPECT_EQ(duel_texts(claim(), results), (Texts{"q_len=64 tile=32 > tile=16", "q_len=64 tile=32 > tile=48"}));
  Claim larger = claim();
  larger.at_least = 4;
  EXPECT_EQ(duel_texts(larger, results), Texts{});
  larger.takes = {};
  larger.varies = {"tile", "variant"};
  EXPECT_EQ(duel_texts(larger, results).size(), 3u) << "results of any variant must take part";
  results[1].status = "wrong";
  EXPECT_EQ(duel_texts(claim(), results), Texts{"q_len=64 tile=16 > tile=48"});
  results[0].time.clear();
  EXPECT_EQ(duel_texts(claim(), results), Texts{});
}

TEST(Claims, OnlyTheLongestLengthUpToTheLimitIsKept) {
  std::vector<Measurement> results;
  for (const int64_t length : {64, 512, 128}) {
    for (const int64_t tile : {16, 32}) results.push_back(result(length, tile, static_cast<double>(tile)));
  }
  Claim longest = claim();
  EXPECT_EQ(duel_texts(longest, results).size(), 3u);
  longest.longest = "q_len";
  for (const auto& [limit, texts] : std::vector<std::pair<int64_t, Texts>>{
           {longest.limit, {"q_len=512 tile=16 > tile=32"}}, {500, {"q_len=128 tile=16 > tile=32"}}, {10, {}}}) {
    longest.limit = limit;
    EXPECT_EQ(duel_texts(longest, results), texts) << limit;
  }
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

/// A claim about the results of the sweep, without comparisons.
Claim sweep_claim() {
  Claim sweep = claim();
  sweep.compared = false;
  sweep.takes = {};
  sweep.varies = {"q_len"};
  sweep.pick = steps("q_len", {{"64", "128"}});
  sweep.figure = ratio_of_medians;
  return sweep;
}

TEST(Claims, FiguresOfTheSweep) {
  const std::vector<Measurement> all = {result(64, 16, 1), result(128, 16, 4), result(256, 16, 16)};
  const Evidence evidence{.results = {&all[0], &all[1], &all[2]}};
  const Estimate ratio = ratio_of_medians(evidence);
  EXPECT_DOUBLE_EQ(ratio.ci_lo, 4 * 0.99 / 1.01);
  EXPECT_DOUBLE_EQ(ratio.ci_hi, 4 * 1.01 / 0.99);
  EXPECT_EQ(ratio_of_medians({.results = {&all[0], &all[0]}}).ci_hi, 1) << "a result must be as fast as itself";
  EXPECT_NEAR(exponent_over("q_len")(evidence).value, 2, 1e-9);
  EXPECT_TRUE(duels({sweep_claim()}, all).empty()) << "the claim must ask for no comparison";
  const Conclusion found = conclude({sweep_claim()}, all, {}).at(0);
  EXPECT_EQ(found.estimate.value, 4);
  EXPECT_EQ(found.floor, 0) << "a floor without a comparison";
  EXPECT_EQ(found.cv, 0.03);
  EXPECT_FALSE(found.compare);
  EXPECT_EQ(found.measurements, (Texts{all[0].id, all[1].id}));
}

std::vector<Comparison> measured(const std::vector<Duel>& asked) {
  std::vector<Comparison> comparisons;
  for (const Duel& duel : asked) {
    comparisons.push_back({.hypothesis = duel.hypothesis,
                           .baseline = duel.baseline,
                           .contender = duel.contender,
                           .ratio = {1.2, 1.19, 1.21},
                           .aa = {1, 0.99, 1.01},
                           .cv = 0.02,
                           .time = {timing(Scope::device_hot, 1e-3), timing(Scope::device_hot, 1.2e-3)}});
  }
  return comparisons;
}

const std::vector<Measurement> two_tiles = {result(64, 16, 2), result(64, 32, 1)};

TEST(Claims, AComparisonBecomesAConclusion) {
  std::vector<Comparison> comparisons = measured(duels({claim()}, two_tiles));
  comparisons.push_back(comparisons[0]);
  comparisons[1].hypothesis = "other";
  const std::vector<Conclusion> conclusions = conclude({claim()}, two_tiles, comparisons, test::steady_processes());
  ASSERT_EQ(conclusions.size(), 1u) << "a comparison for another claim must not count";
  const Conclusion& found = conclusions[0];
  EXPECT_EQ(found.subject, "variant=tuned q_len=64");
  EXPECT_EQ(found.estimate.value, 1.2);
  EXPECT_NEAR(found.floor, -std::log(0.99), 1e-12) << "the larger logarithm of the ends of the A/A interval";
  EXPECT_EQ(found.cv, 0.02);
  EXPECT_EQ(found.values["baseline"]["tile"], 32);
  EXPECT_EQ(found.values["contender"]["tile"], 16);
  EXPECT_EQ(found.measurements, (Texts{two_tiles[1].id, two_tiles[0].id}));
  EXPECT_TRUE(found.correct);
  EXPECT_EQ(judge(claim().hypothesis, found).state, State::supported);

  std::vector<Measurement> failed = {two_tiles[0], two_tiles[1], two_tiles[0]};
  failed[2].status = "failed";  // the case failed in a later comparison
  const Conclusion refused = conclude({claim()}, failed, comparisons).at(0);
  EXPECT_FALSE(refused.correct);
  EXPECT_EQ(refused.fault, failed.back().status + ": " + failed.back().reason);
  EXPECT_TRUE(conclude({claim()}, {two_tiles[1]}, comparisons).empty())
      << "a conclusion without a record of the contender";
}

/// For Claim::gather: one conclusion from the first two comparisons.
std::vector<std::vector<const Comparison*>> all_together(const std::vector<Comparison>& all) {
  return {{&all[0], &all[1]}};
}

TEST(Claims, SeveralComparisonsForOneConclusion) {
  const std::vector<Measurement> results = {result(64, 16, 2), result(64, 32, 1), result(64, 48, 3)};
  std::vector<Comparison> comparisons = measured(duels({claim()}, results));
  ASSERT_EQ(comparisons.size(), 2u);
  comparisons[0].cv = 0.04;
  comparisons[1].ratio.value = 1.3;
  Claim worst = claim();
  worst.gather = all_together;
  worst.complete = [](Conclusion& c, const Evidence& evidence) { c.values["pairs"] = evidence.comparisons.size(); };
  const Conclusion found = conclude({worst}, results, comparisons).at(0);
  EXPECT_EQ(found.estimate.value, 1.3) << "the figure must be the ratio of the last comparison";
  EXPECT_EQ(found.cv, 0.04) << "the cv must be the largest of the comparisons";
  EXPECT_EQ(found.values["pairs"], 2);
  EXPECT_EQ(found.measurements.size(), 4u);
  // The floor is in the unit of the figure.
  worst.figure = [](const Evidence& evidence) -> Estimate {
    const double percent = 100 * (evidence.comparisons[1]->ratio.value - 1);
    return {percent, percent, percent};
  };
  EXPECT_NEAR(conclude({worst}, results, comparisons).at(0).estimate.value, 30, 1e-9);
  EXPECT_NEAR(conclude({worst}, results, comparisons).at(0).floor, 130 * (1 / 0.99 - 1), 1e-9);
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
  const Comparison whole = measured(duels({claim()}, two_tiles)).at(0);
  Claim percent = claim();
  percent.figure = [](const Evidence& evidence) -> Estimate {
    const auto& [value, lo, hi] = evidence.comparisons.back()->ratio;
    return {100 * (value - 1), 100 * (lo - 1), 100 * (hi - 1)};
  };
  const auto concluded = [&](const Claim& about, const std::vector<double>& ratios) {
    return conclude({about}, two_tiles, {by_processes(whole, ratios)}, test::steady_processes()).at(0);
  };
  const Conclusion alike = concluded(claim(), {1.2, 1.201, 1.199}), apart = concluded(claim(), {1.2, 2.4, 0.6});
  EXPECT_EQ(alike.estimate.processes, 3);
  EXPECT_NEAR(alike.estimate.value, 1.2, 1e-6);
  EXPECT_EQ(judge(claim().hypothesis, alike).state, State::supported);
  EXPECT_NEAR(apart.estimate.value, 1.2, 1e-6);
  EXPECT_EQ(judge(claim().hypothesis, apart).state, State::inconclusive) << "the processes disagree";
  const Conclusion more = concluded(percent, {1.1, 1.2, 1.3});
  EXPECT_NEAR(more.estimate.value, 20, 1e-9) << "the figure must be the mean of the processes' figures";
  EXPECT_FALSE(more.relative);
  EXPECT_NEAR(more.parts[2].value, 30, 1e-9);

  // A process that lacks one of the comparisons gives no figure.
  std::vector<Comparison> two = {by_processes(whole, {1.1, 1.2, 1.3}), by_processes(whole, {2.1, 2.2, 2.3})};
  two[0].parts.erase(two[0].parts.begin());
  two[1].parts.erase(two[1].parts.begin() + 1);
  Claim sum = claim();
  sum.gather = all_together;
  sum.figure = [](const Evidence& evidence) -> Estimate {
    const double value = evidence.comparisons[0]->ratio.value + evidence.comparisons[1]->ratio.value;
    return {value, value, value};
  };
  const std::vector<Part> parts = conclude({sum}, two_tiles, two, test::steady_processes()).at(0).parts;
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].process, 3);
  EXPECT_NEAR(parts[0].value, 1.3 + 2.3, 1e-12);
}

TEST(Claims, FiguresOfTheSweepAreMeasuredAgainInProcesses) {
  const std::vector<Measurement> sweep = {result(64, 16, 1), result(128, 16, 3), result(256, 32, 7)};
  Claim about = sweep_claim();
  about.complete = [](Conclusion& c, const Evidence& evidence) { c.values["s"] = seconds(*evidence.results.back()); };
  EXPECT_EQ(cases_of_claims({about}, sweep), (std::vector<Case>{sweep[0].config, sweep[1].config}));
  Processes processes = test::steady_processes();
  processes.results = {{result(64, 16, 1), result(128, 16, 2)},
                       {result(128, 16, 2.2), result(64, 16, 1)},
                       {result(64, 16, 1)},  // this process lacks a case
                       {result(64, 16, 1), result(128, 16, 1.8)}};
  const Conclusion found = conclude({about}, sweep, {}, processes).at(0);
  EXPECT_EQ(found.parts.size(), 3u);
  EXPECT_NEAR(found.estimate.value, std::cbrt(2 * 2.2 * 1.8), 1e-9) << "not the ratio of 3 that the sweep found";
  EXPECT_EQ(found.values["s"], 2.0) << "the value must come from the process whose figure is the median";
  about.measured_again = false;
  EXPECT_TRUE(cases_of_claims({about}, sweep).empty());
  EXPECT_EQ(conclude({about}, sweep, {}, processes).at(0).parts.size(), 1u) << "only the sweep may give a figure";
  about.measured_again = about.exact = true;
  EXPECT_TRUE(cases_of_claims({about}, sweep).empty()) << "a count must not be measured again";
}

TEST(Claims, WarmTimesOfMemoryBoundCasesAndUnlikeThrottlingAreNoted) {
  std::vector<Measurement> results = two_tiles;
  std::vector<Comparison> comparisons = measured(duels({claim()}, results));
  Claim sweep = claim();
  sweep.compared = false;
  sweep.figure = ratio_of_medians;
  const auto warm = [&](const Claim& about) { return conclude({about}, results, comparisons).at(0).warm; };
  EXPECT_FALSE(warm(claim()) || warm(sweep));
  results[0].work = Work{.flops = 1, .bytes = 1, .bound = Bound::memory};
  EXPECT_TRUE(warm(claim()) && warm(sweep));
  for (Timing& time : comparisons[0].time) time.scope = Scope::device_cold;
  EXPECT_FALSE(warm(claim()));
  comparisons = {by_processes(comparisons[0], {1.2, 1.2})};
  EXPECT_FALSE(warm(claim()));
  comparisons[0].parts[1].time[0].scope = Scope::device_hot;
  EXPECT_TRUE(warm(claim())) << "did not note the process in which no flush worked";
  results[0].time.push_back(timing(Scope::device_cold, 2));
  EXPECT_FALSE(warm(sweep));

  results[0].clocks = results[1].clocks = {{"throttle_reasons", {"power"}}};
  EXPECT_FALSE(conclude({claim()}, results, comparisons).at(0).unlike_throttling);
  results[1].clocks = {{"throttle_reasons", Json::array()}};
  EXPECT_TRUE(conclude({claim()}, results, comparisons).at(0).unlike_throttling);
  const auto capped = [&] { return conclude({claim()}, results, comparisons).at(0).power_capped; };
  EXPECT_FALSE(capped());
  comparisons[0].clocks = {{"throttle_reasons", {"software power cap"}}};
  EXPECT_TRUE(capped());
  comparisons[0].clocks = nullptr;
  results[1].clocks = {{"throttle_reasons", {"hardware slowdown", "software power cap"}}};
  EXPECT_TRUE(capped());
}

}  // namespace
}  // namespace attn
