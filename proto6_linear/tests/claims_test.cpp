// The claims, the search for the crossover, the plans and the answer on made-up results.
#include "proto6_linear/claims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/testing/claims.h"
#include "common/testing/planned_cases.h"
#include "proto6_linear/crossover.h"
#include "proto6_linear/problem.h"
#include "proto6_linear/sweep.h"

namespace attn {
namespace {

// For one pass of linear attention a nanosecond for each token and head, for softmax attention a nanosecond for each
// 500 pairs of tokens. `phases` takes two and a half times as long as one pass. A gate by head or by token adds a
// fifth, a gate by channel doubles the time. Chunks of 32 are the fastest.
double linear_seconds(const Measurement& result) {
  const Case& config = result.config;
  const double tokens =
      static_cast<double>(config.integer("q_len") * config.integer("heads") * config.integer("batch"));
  const std::string variant = config.text("variant");
  if (variant == "softmax") return 1e-9 * tokens * static_cast<double>(config.integer("q_len")) / 500;
  if (variant == "recurrent") return 1e-8 * tokens;
  const std::string gate = config.text("gate");
  return 1e-9 * tokens * (variant == "phases" ? 2.5 : 1) *
         (gate == "none"      ? 1
          : gate == "channel" ? 2
                              : 1.2) *
         (config.integer("chunk") == 32 ? 1 : 1.1) * (config.text("scan") == "lookback" ? 0.9 : 1) *
         (config.text("scan") == "host" ? 10 : 1) * (config.integer("normalised") != 0 ? 1.05 : 1) *
         (config.text("feature") == "elu1" ? 1.3 : 1) *
         (variant == "fused" && config.integer("segments") == 1 && config.integer("heads") == 1 ? 1.5 : 1);
}

test::MadeUp linear_on(const DeviceInfo& device) {
  return {.spec = linear_experiment(), .device = device, .seconds = linear_seconds, .also = [=](Measurement& result) {
            const Plan plan = linear_case_plan(result.config, {device});
            result.check->max_abs = 1e-7 * std::sqrt(static_cast<double>(result.config.integer("q_len")));
            result.values = {{"between_bytes", 1000},
                             {"recurrence_flops", 0.9 * plan.work.flops},
                             {"softmax_cosine", 0.2},
                             {"softmax_distance", 3.0}};
            if (plan.host) result.values = {{"kernels_s", 1e-6}, {"down_s", 2e-6}, {"scan_s", 2e-6}, {"up_s", 2e-6}};
            if (plan.work.bound == Bound::memory) {
              result.copy_pct = Estimate{90, 89, 91};
            } else {
              result.matrix_pct = Estimate{80, 79, 81};
            }
            if (plan.launches.size() < 2 || plan.host) return;
            for (const Launch& launch : plan.launches)
              result.phases.push_back({.name = launch.phase, .pipeline = nullptr});
          }};
}

// Adds one search for the crossover. By linear_seconds(), linear and softmax attention take the same time at 500 tokens
// if chunks have 32 tokens, and at 550 tokens if chunks have another size.
void search_crossover(test::Judged& judged) {
  Case softmax, linear;
  for (auto [config, variant] : {std::pair{&softmax, "softmax"}, {&linear, "fused"}}) {
    config->set("variant", std::string(variant));
    complete_linear(*config, judged.made.device);
  }
  Bracket bracket(8192);
  while (const auto tokens = bracket.next()) {
    std::vector<Measurement> pair;
    for (Case* config : {&softmax, &linear}) {
      config->set("q_len", *tokens);
      pair.push_back(judged.made.result(*config, judged.results.size() + pair.size()));
    }
    judged.comparisons.push_back(test::MadeUp::comparison(crossover_hypothesis, pair[0], pair[1]));
    judged.results.insert(judged.results.end(), pair.begin(), pair.end());
    bracket.add(*tokens, judged.comparisons.back().ratio);
  }
}

TEST(LinearClaimsTest, OfMadeUpResults) {
  const test::MadeUp cpu = linear_on(test::avx2()), gpu = linear_on(test::hopper());
  test::Judged of_cpu(cpu, "full");
  const test::Judged of_gpu(gpu, "full");
  search_crossover(of_cpu);
  test::expect_claims({of_cpu, of_gpu}, {{"fused", "chunk scan variant", "supported"},
                                         {"scan_form", "scan", "supported"},
                                         {"segments", "segments", "supported"},
                                         {"chunk_64", "chunk", "supported"},
                                         {"chunk_128", "chunk", "refuted"},
                                         {"host_scan_share", "", "supported"},
                                         {"device_scan", "", "supported"},
                                         {"flat", "", "refuted"},
                                         {"floor", "", "supported"},
                                         {"rate_64", "", "supported"},
                                         {"rate_128", "", "supported"},
                                         {"scaling", "", "supported"},
                                         {"memory", "", "supported"},
                                         {"gate_head", "chunk gate", "refuted"},
                                         {"gate_token", "chunk gate", "refuted"},
                                         {"gate_channel", "chunk gate", "refuted"},
                                         {"channel_over_token", "gate", "supported"},
                                         {"normalised", "normalised", "supported"},
                                         {"feature", "chunk feature", "refuted"},
                                         {"decode_rate", "", "supported"},
                                         {"decode_break_even", "", "supported"},
                                         {"crossover_256", "", "refuted"},
                                         {"crossover_4096", "", "refuted"},
                                         {"equivalence", "", "refuted"},
                                         {"error_growth", "", "supported"}});
  for (const Claim& claim : cpu.claims()) EXPECT_TRUE(claim.measured_again) << claim.hypothesis.id;
  for (const Conclusion& conclusion : gpu.conclusions(of_gpu.results, "floor")) {
    EXPECT_NEAR(conclusion.estimate.value, 100.0 / 90, 1e-9);  // memory-bound cases only
  }
}

TEST(LinearSweepTest, FullHoldsQuick) { test::expect_sweep(linear_experiment()); }

TEST(LinearPlanTest, ProblemsRunTheirPlans) {
  test::expect_problems_run_their_plans(
      linear_experiment(), "q_len=64 heads=1 batch=1 head_dim=64 chunk=32 segments=0 gate=none feature=identity");
}

bool any_begins(const std::set<std::string>& options, const std::string& begin) {
  return std::ranges::any_of(options, [&](const std::string& option) { return option.starts_with(begin); });
}

TEST(LinearAnswerTest, TheFastestFormIsTheChoice) {
  const std::set<std::string> fused = test::taken_if_fast(linear_experiment(), "variant=fused scan=none");
  EXPECT_TRUE(any_begins(fused, "fused "));
  EXPECT_FALSE(any_begins(fused, "phases "));
  EXPECT_TRUE(any_begins(test::taken_if_fast(linear_experiment(), "variant=phases scan=passes"), "phases passes "));
  ExperimentSpec of_a_file = linear_experiment();  // a feature map of the user
  of_a_file.sweep = feature_sweep;
  of_a_file.complete = [](Case& config, const DeviceInfo& device) {
    config.set("feature", std::string("file-6527d776717c"));
    complete_linear(config, device);
  };
  of_a_file.plan = [](Case config, const Setting& setting) {
    config.set("feature", std::string("relu"));
    return linear_case_plan(config, setting);
  };
  const std::set<std::string> taken = test::taken_if_fast(of_a_file, "variant=fused");
  EXPECT_FALSE(taken.empty());
  for (const std::string& option : taken) EXPECT_TRUE(option.starts_with("fused ")) << option;
}

Bracket searched(int64_t last, const std::function<Estimate(int64_t)>& ratio, int* probes = nullptr) {
  Bracket bracket(last);
  int count = 0;
  while (const auto tokens = bracket.next()) {
    EXPECT_LT(++count, 40) << "the search does not end";
    if (count >= 40) break;
    EXPECT_GE(*tokens, Bracket::first);
    EXPECT_LE(*tokens, last);
    bracket.add(*tokens, ratio(*tokens));
  }
  if (probes) *probes = count;
  return bracket;
}
Estimate exactly(double value) { return {value, 0.999 * value, 1.001 * value}; }

TEST(CrossoverTest, FindsTheLength) {
  for (const double even : {20.0, 100.0, 777.0, 5000.0}) {
    int probes = 0;
    const Bracket bracket =
        searched(8192, [&](int64_t tokens) { return exactly(even / static_cast<double>(tokens)); }, &probes);
    const Estimate found = bracket.tokens();
    EXPECT_NEAR(found.value, even, 0.02 * even);
    EXPECT_LE(found.ci_lo, even);
    EXPECT_GE(found.ci_hi, even);
    EXPECT_LE(found.ci_hi - found.ci_lo, std::max(8.0, even / 4));
    EXPECT_LE(probes, 16);
    EXPECT_GE(bracket.nearest(), even);
  }
}

TEST(CrossoverTest, EndsOfTheRange) {
  const Bracket always = searched(8192, [](int64_t) { return exactly(0.5); });
  EXPECT_TRUE(always.begins_faster());
  EXPECT_EQ(always.tokens().ci_hi, Bracket::first);
  const Bracket never = searched(1000, [](int64_t) { return exactly(1.5); });
  EXPECT_FALSE(never.begins_faster());
  EXPECT_EQ(never.tokens().value, 1000);
  EXPECT_EQ(never.tokens().ci_lo, 1000);
}

// Up to some 100 tokens both take the time of a launch.
TEST(CrossoverTest, ShortLengthsSayNothingAboutLongOnes) {
  const auto ratio = [](int64_t tokens) {
    return exactly(tokens <= 128 ? 0.996 : 1 + (900 - static_cast<double>(tokens)) / 2000);
  };
  const Bracket bracket = searched(8192, ratio);
  EXPECT_NEAR(bracket.tokens().value, 900, 60);
  EXPECT_FALSE(bracket.begins_faster());
}

// If noise hides whether linear or softmax attention is faster, the search stops, and the interval is wide.
TEST(CrossoverTest, NoiseWidensTheInterval) {
  int probes = 0;
  const Bracket bracket = searched(
      8192,
      [](int64_t tokens) {
        const double ratio = std::pow(300 / static_cast<double>(tokens), 0.2);
        return Estimate{ratio, 0.8 * ratio, 1.2 * ratio};
      },
      &probes);
  const Estimate found = bracket.tokens();
  EXPECT_LE(found.ci_lo, 128);
  EXPECT_GE(found.ci_hi, 512);
  EXPECT_LE(probes, 7);
}

// A difference that the noise makes is no crossing: softmax attention may be faster up to any longer length.
TEST(CrossoverTest, ADifferenceWithinTheNoiseIsUndecided) {
  const test::MadeUp made = linear_on(test::avx2());
  const auto verdict = [&](double longest, double noise) {
    test::Judged judged(made, std::vector<Measurement>{});
    for (const auto& [tokens, ratio] : {std::pair<int64_t, double>{16, 1.5}, {32, 1.2}, {64, longest}}) {
      std::vector<Measurement> pair;
      for (const char* variant : {"softmax", "fused"}) {
        Case config;
        config.set("variant", std::string(variant));
        config.set("q_len", tokens);
        complete_linear(config, made.device);
        pair.push_back(made.result(config, judged.results.size() + pair.size()));
      }
      Comparison one = test::MadeUp::comparison(crossover_hypothesis, pair[0], pair[1]);
      one.ratio = exactly(ratio);
      one.aa = {1, std::exp(-noise), std::exp(noise)};
      judged.comparisons.push_back(one);
      judged.results.insert(judged.results.end(), pair.begin(), pair.end());
    }
    return made.verdict(made.conclusions(judged.results, judged.comparisons, crossover_hypothesis).at(0));
  };
  EXPECT_EQ(verdict(0.9, 0.01), State::supported);
  EXPECT_EQ(verdict(0.995, 0.01), State::inconclusive);
  EXPECT_EQ(verdict(1.1, 0.01), State::inconclusive) << "the search ended before a crossing";
}

TEST(CrossoverTest, SearchesOfDifferentCasesStaySeparate) {
  const DeviceInfo device = test::avx2();
  std::vector<Comparison> comparisons;
  for (const char* gate : {"none", "token"}) {
    for (const int64_t tokens : {16, 32}) {
      Comparison one;
      one.hypothesis = crossover_hypothesis;
      one.contender.set("variant", std::string("fused"));
      one.contender.set("gate", std::string(gate));
      complete_linear(one.contender, device);
      one.contender.set("q_len", tokens);
      one.ratio = exactly(tokens == 16 ? 2 : 0.5);
      comparisons.push_back(one);
    }
  }
  comparisons.push_back(comparisons.front());
  comparisons.back().hypothesis = "fused";
  const auto searches = crossover_searches(comparisons);
  ASSERT_EQ(searches.size(), 2u);
  for (const auto& search : searches) {
    ASSERT_EQ(search.size(), 2u);
    EXPECT_NEAR(bracket_of(search).tokens().value, std::sqrt(16.0 * 32), 0.01);
  }
}

}  // namespace
}  // namespace attn
