#include "common/records/timing.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>
#include <stdexcept>
#include <thread>
#include <tuple>

namespace attn {
namespace {

/// Subjects that record the order in which they run.
struct Script {
  std::string turns;
  std::vector<Sampler> samplers;

  Script(const std::string& names, const std::function<double(char name, int turn)>& seconds) {
    for (char subject : names) {
      samplers.emplace_back([this, subject, seconds] {
        turns += subject;
        return std::vector<double>{seconds(subject, static_cast<int>(turns.size()))};
      });
    }
  }
};

double steady(char, int) { return 1e-3; }
/// Samples whose interval never becomes narrow: their spread is half the median.
double noisy(char, int turn) { return turn % 7 < 3 ? 1e-3 : 2e-3; }

TEST(MeasureInterleaved, WarmsUpThenAlternatesTheOrder) {
  Script script("ABC", noisy);
  const auto measured = measure_interleaved(script.samplers, {.warmup = 2, .max_samples = 3, .budget_s = 60});
  EXPECT_EQ(script.turns, "AABBCCABCCBAABC");
  ASSERT_EQ(measured.size(), 3u);
  EXPECT_EQ(measured[2].stop, "max");
  EXPECT_EQ(measured[2].series.at(0).size(), 3u);
}

TEST(MeasureInterleaved, KeepsSamplesWithTheirSubjectScopeAndRound) {
  int turn = 0;
  const auto sampler = [&turn](double base) {
    return [&turn, base] {
      ++turn;
      return std::vector<double>{base + turn, 100 + base + turn};
    };
  };
  const std::vector<Sampler> samplers{sampler(1000), sampler(2000)};
  const auto measured =
      measure_interleaved(samplers, {.warmup = 0, .samples_per_round = 2, .max_samples = 4, .min_rounds = 2});
  EXPECT_EQ(measured[0].series[0], (Series{{1001, 1002}, {1007, 1008}}));  // A is last in the second round
  EXPECT_EQ(measured[1].series[0], (Series{{2003, 2004}, {2005, 2006}}));
  EXPECT_EQ(measured[1].series[1], (Series{{2103, 2104}, {2105, 2106}}));
}

TEST(MeasureInterleaved, StopsOnceTheFirstScopeOfEverySubjectIsNarrow) {
  const auto only_a_is_steady = [](char name, int turn) { return name == 'A' ? 1e-3 : noisy(name, turn); };
  int turn = 0;
  const auto scopes = [&](bool first_is_noisy) {
    return std::vector<Sampler>{[&turn, first_is_noisy] {
      const double wide = noisy('A', ++turn);
      return first_is_noisy ? std::vector{wide, 1e-3} : std::vector{1e-3, wide};
    }};
  };
  struct Stop {
    std::vector<Sampler> samplers;
    TimingPolicy policy;
    const char* stop;
    size_t rounds;
  };
  Script one("A", steady), pair("AB", only_a_is_steady), ten_a_round("A", steady);
  for (const auto& [samplers, policy, stop, rounds] :
       std::vector<Stop>{{one.samplers, {.min_samples = 10, .budget_s = 60}, "ci", 10},
                         {pair.samplers, {.max_samples = 40, .budget_s = 60}, "max", 40},
                         {scopes(false), {.budget_s = 60}, "ci", 10},
                         {scopes(true), {.max_samples = 30, .budget_s = 60}, "max", 30},
                         // An interval needs six rounds.
                         {ten_a_round.samplers,
                          {.samples_per_round = 10, .min_samples = 10, .budget_s = 60, .min_rounds = 1},
                          "ci",
                          6}}) {
    const auto measured = measure_interleaved(samplers, policy);
    EXPECT_EQ(measured[0].stop, stop) << rounds;
    EXPECT_EQ(measured[0].series[0].size(), rounds);
  }
}

TEST(MeasureInterleaved, TheBudgetEndsTheSamplingAfterMinRounds) {
  Script script("AB", noisy);
  auto measured = measure_interleaved(script.samplers, {.warmup = 1, .budget_s = 0, .min_rounds = 4});
  EXPECT_EQ(measured[1].stop, "budget");
  EXPECT_EQ(measured[1].series[0].size(), 4u);

  // The warm-up counts too: here it uses up the budget, although the rounds are fast.
  int turn = 0;
  const std::vector<Sampler> slow_start{[&] {
    if (++turn <= 2) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return std::vector<double>{noisy('A', turn)};
  }};
  measured = measure_interleaved(slow_start, {.warmup = 2, .max_samples = 1000000, .budget_s = 0.05, .min_rounds = 2});
  EXPECT_EQ(measured[0].stop, "budget");
  EXPECT_EQ(measured[0].series[0].size(), 2u);
}

TEST(MeasureInterleaved, AnInterruptLeavesWholeRoundsOnly) {
  Script script("AB", noisy);
  const auto measured = measure_interleaved(script.samplers, {.warmup = 1, .budget_s = 60},
                                            [&] { return script.turns.size() == 2 + 4 + 1; });
  EXPECT_EQ(script.turns, "ABABBAA");
  EXPECT_EQ(measured[1].stop, "interrupted");
  for (const Measured& subject : measured) EXPECT_EQ(subject.series[0].size(), 2u);
  Script cold("AB", noisy);
  const auto nothing = measure_interleaved(cold.samplers, {.warmup = 3}, [&] { return cold.turns.size() == 1; });
  EXPECT_EQ(cold.turns, "A");
  EXPECT_EQ(nothing[1].stop, "interrupted");
}

TEST(MeasureInterleaved, RefusesSamplesThatCannotBeTimes) {
  for (double seconds : {0.0, -1e-3, std::nan(""), HUGE_VAL}) {
    const std::vector<Sampler> broken{[=] { return std::vector<double>{seconds}; }};
    EXPECT_THROW(measure_interleaved(broken, {}), std::runtime_error) << seconds;
  }
  const std::vector<Sampler> none{[] { return std::vector<double>{}; }};
  EXPECT_THROW(measure_interleaved(none, {}), std::logic_error);
  EXPECT_THROW(measure_interleaved(none, {.samples_per_round = 0}), std::invalid_argument);
  EXPECT_TRUE(measure_interleaved({}, {}).empty());
}

/// Samples with an error of their round (standard deviation `between`) and an error of their own (`within`).
Series simulate(std::mt19937_64& random, int rounds, int samples, double between, double within) {
  std::normal_distribution<double> normal;
  Series series(rounds);
  for (Round& round : series) {
    const double common = between * normal(random);
    for (int i = 0; i < samples; ++i) round.push_back(10 + common + within * normal(random));
  }
  return series;
}

Series one_sample_per_round(const Series& series) {
  Series flat;
  for (const Round& round : series) {
    for (double sample : round) flat.push_back({sample});
  }
  return flat;
}

TEST(BootstrapMedian, ItsValueIsTheMedianOfAllSamplesAndTheSeedDecidesTheInterval) {
  std::mt19937_64 random(1);
  for (int rounds : {1, 2, 7, 300}) {
    Series series = simulate(random, rounds, 3, 1, 1);
    series.front().push_back(11);  // rounds of different sizes
    series.emplace_back();
    std::vector<double> all;
    for (const Round& round : series) all.insert(all.end(), round.begin(), round.end());
    const Estimate a = bootstrap_median(series, 3), b = bootstrap_median(series, 3), c = bootstrap_median(series, 4);
    EXPECT_DOUBLE_EQ(a.value, median(all));
    EXPECT_TRUE(a.ci_lo <= a.value && a.value <= a.ci_hi);
    EXPECT_TRUE(a.ci_lo == b.ci_lo && a.ci_hi == b.ci_hi);
    EXPECT_TRUE(rounds < 300 || a.ci_lo != c.ci_lo || a.ci_hi != c.ci_hi);
  }
  for (const Series& none : {Series{}, Series{{}, {}}}) EXPECT_THROW(bootstrap_median(none, 1), std::invalid_argument);
}

TEST(BootstrapMedian, AnIntervalOverRoundsCoversTheTrueMedianAndAnIntervalOverSamplesDoesNot) {
  std::mt19937_64 random(2024);
  constexpr int trials = 400;
  int covered_by_rounds = 0, covered_by_samples = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const Series series = simulate(random, 20, 5, 1, 0.3);
    const Estimate rounds = bootstrap_median(series, trial);
    const Estimate samples = bootstrap_median(one_sample_per_round(series), trial);
    covered_by_rounds += rounds.ci_lo <= 10 && 10 <= rounds.ci_hi;
    covered_by_samples += samples.ci_lo <= 10 && 10 <= samples.ci_hi;
  }
  EXPECT_GT(covered_by_rounds, 0.91 * trials);
  EXPECT_LT(covered_by_rounds, 0.985 * trials);
  EXPECT_LT(covered_by_samples, 0.75 * trials);
}

TEST(BootstrapMedian, NarrowsWithTheSquareRootOfTheRounds) {
  std::mt19937_64 random(5);
  const Estimate few = bootstrap_median(simulate(random, 50, 1, 1, 0), 1);
  const Estimate many = bootstrap_median(simulate(random, 3200, 1, 1, 0), 1);
  EXPECT_NEAR((few.ci_hi - few.ci_lo) / (many.ci_hi - many.ci_lo), 8, 4);
  const Estimate one_round = bootstrap_median({{5, 1, 4, 2, 3}}, 9);  // its extremes stand for the interval
  EXPECT_EQ(std::tie(one_round.value, one_round.ci_lo, one_round.ci_hi), std::tuple(3, 1, 5));
}

TEST(Summarize, FillsEveryField) {
  const Timing timing = summarize({{2, 4}, {4, 6}, {}}, Scope::host, "max", 1);
  EXPECT_EQ(std::tie(timing.scope, timing.n, timing.rounds, timing.stop),
            std::tuple(Scope::host, 4, 2, std::string("max")));
  EXPECT_EQ(std::tie(timing.median_s, timing.ci_lo_s, timing.ci_hi_s, timing.min_s), std::tuple(4, 3, 5, 2));
  EXPECT_DOUBLE_EQ(timing.cv, std::sqrt(8.0 / 3) / 4);  // the sample standard deviation divides by n - 1
  EXPECT_EQ(summarize({{2}}, Scope::device_hot, "interrupted", 1).cv, 0);
  EXPECT_EQ(summarize({}, Scope::device_hot, "interrupted", 1).n, 0);
}

TEST(Ratio, RecoversTheFactorThoughBothSeriesDrift) {
  // Both subjects slow down fivefold over the run; the contender takes 1.2 times as long at every moment.
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  Series baseline, contender;
  for (int round = 0; round < 40; ++round) {
    const double speed = 1 + round / 10.0;
    baseline.push_back({speed * (1 + 0.01 * normal(random)), speed * (1 + 0.01 * normal(random))});
    contender.push_back({1.2 * speed * (1 + 0.01 * normal(random)), 1.2 * speed * (1 + 0.01 * normal(random))});
  }
  const Estimate estimate = ratio(baseline, contender, 1);
  EXPECT_NEAR(estimate.value, 1.2, 0.01);
  EXPECT_LT(estimate.ci_lo, 1.2);
  EXPECT_GT(estimate.ci_hi, 1.2);
  EXPECT_LT(estimate.ci_hi - estimate.ci_lo, 0.02);
  const Estimate alone = bootstrap_median(baseline, 1);
  EXPECT_GT(alone.ci_hi - alone.ci_lo, 0.2 * alone.value) << "the drift must be larger than the effect";
}

TEST(Ratio, PairsSamplesAndLeavesOutTheSurplus) {
  EXPECT_EQ(ratio({{1, 2}, {4}}, {{2, 4, 99}, {8, 99}}, 1).value, 2);
  EXPECT_EQ(ratio({{1, 2}, {4}}, {{2, 4, 99}, {8, 99}}, 1).ci_hi, 2);
  EXPECT_EQ(ratio({{2}}, {{1}}, 1).value, 0.5) << "not contender / baseline";
  EXPECT_THROW(ratio({{1}}, {{1}, {1}}, 1), std::invalid_argument);
  EXPECT_THROW(ratio({{1}}, {{}}, 1), std::invalid_argument);
}

TEST(ScalingExponent, IntervalsCoverTheTruth) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  int covered = 0;
  for (int run = 0; run < 1000; ++run) {
    std::vector<ScalingPoint> points;
    for (const double x : {1, 2, 4, 8}) {
      const double time = std::pow(x, 1.5) * std::exp(0.03 * normal(random));
      points.push_back({x, {time, time * std::exp(-1.96 * 0.03), time * std::exp(1.96 * 0.03)}});
    }
    const Estimate estimate = scaling_exponent(points);
    covered += estimate.ci_lo < 1.5 && 1.5 < estimate.ci_hi;
  }
  EXPECT_NEAR(covered, 950, 25);
}

TEST(ScalingExponent, IntervalsOfTheTimesBoundTheExponent) {
  const std::vector<ScalingPoint> points{{1, {2, 2, 4}}, {4, {16, 16, 32}}};
  const Estimate estimate = scaling_exponent(points);
  EXPECT_DOUBLE_EQ(estimate.value, 1.5);
  EXPECT_DOUBLE_EQ(estimate.ci_lo, 1.0) << "not the slope if the first time is 4";
  EXPECT_DOUBLE_EQ(estimate.ci_hi, 2.0) << "not the slope if the last time is 32";
}

TEST(ScalingExponent, NeedsTwoDifferentX) {
  const Estimate time{1, 1, 1};
  for (const std::vector<ScalingPoint>& points : std::vector<std::vector<ScalingPoint>>{
           {}, {{8, time}}, {{0.1, time}, {0.1, time}}, {{0, time}, {8, time}}, {{1, {}}, {8, time}}}) {
    EXPECT_THROW(scaling_exponent(points), std::invalid_argument) << points.size();
  }
}

}  // namespace
}  // namespace attn
