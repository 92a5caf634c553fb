// The claims turn results into duels (pairs of cases that are measured in turn) and conclusions. The tests run the
// claims' functions, and the search for the crossover, on made-up results.
#include "proto6_linear/claims.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/records/finding.h"
#include "common/testing/advice.h"
#include "common/testing/devices.h"
#include "common/testing/made_up.h"
#include "proto6_linear/crossover.h"
#include "proto6_linear/problem.h"
#include "proto6_linear/sweep.h"

namespace attn {
namespace {

/// Returns a made-up time: for one pass of linear attention a nanosecond for each token and head, for softmax attention
/// a nanosecond for each 500 pairs of tokens. `phases` takes two and a half times as long as one pass. A gate by head
/// or by token adds a fifth, a gate by channel doubles the time. Chunks of 32 are the fastest.
double linear_seconds(const Case& config) {
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

Measurement made_up(const Case& config, const DeviceInfo& device, size_t number) {
  Measurement result;
  result.id = fmt::format("{:016x}", number);
  result.config = config;
  result.check = Check{};
  result.check->max_abs = 1e-7 * std::sqrt(static_cast<double>(config.integer("q_len")));
  const Plan plan = linear_case_plan(config, {device});
  result.work = plan.work;
  result.values = {{"between_bytes", 1000},
                   {"recurrence_flops", 0.9 * plan.work.flops},
                   {"softmax_cosine", 0.2},
                   {"softmax_distance", 3.0}};
  if (plan.host) result.values = {{"kernels_s", 1e-6}, {"down_s", 2e-6}, {"scan_s", 2e-6}, {"up_s", 2e-6}};
  const bool memory = plan.work.bound == Bound::memory;
  if (memory) result.copy_pct = Estimate{90, 89, 91};
  if (!memory) result.matrix_pct = Estimate{80, 79, 81};
  const double seconds = linear_seconds(config);
  const auto timing = [&](Scope scope) {
    return Timing{scope, 10, 10, seconds, seconds, seconds, 0.01, seconds, "ci"};
  };
  if (!plan.host) result.time.push_back(timing(memory ? Scope::device_cold : Scope::device_hot));
  result.time.push_back(timing(Scope::host));
  if (plan.launches.size() > 1 && !plan.host) {
    for (const Launch& launch : plan.launches) result.phases.push_back({.name = launch.phase, .pipeline = nullptr});
  }
  return result;
}

std::vector<Measurement> linear_results(const DeviceInfo& device) {
  std::vector<Measurement> results;
  const auto complete = [&](Case& config) { complete_linear(config, device); };
  for (const Case& config : expand(linear_sweep("full", device), linear_axes(), complete)) {
    const Plan plan = linear_case_plan(config, {device});
    if (!skip_reason(plan, device)) results.push_back(made_up(config, device, results.size()));
  }
  return results;
}

std::vector<Comparison> linear_comparisons(const DeviceInfo& device, std::vector<Measurement>& results) {
  std::vector<Comparison> comparisons;
  const auto compare = [&](const Duel& duel) {
    comparisons.push_back(
        test::made_up_comparison(duel, linear_seconds(duel.baseline), linear_seconds(duel.contender)));
    return comparisons.back().ratio;
  };
  for (const Duel& duel : duels(linear_claims(device), results)) compare(duel);
  // The next comparisons belong to one search for the crossover. By linear_seconds(), linear and softmax attention take
  // the same time at 500 tokens if chunks have 32 tokens, and at 550 tokens if chunks have another size.
  Case softmax, linear;
  for (auto [config, variant] : {std::pair{&softmax, "softmax"}, {&linear, "fused"}}) {
    config->set("variant", std::string(variant));
    complete_linear(*config, device);
  }
  Bracket bracket(8192);
  while (const auto tokens = bracket.next()) {
    for (Case* config : {&softmax, &linear}) {
      config->set("q_len", *tokens);
      results.push_back(made_up(*config, device, results.size()));
    }
    bracket.add(*tokens, compare({crossover_hypothesis, softmax, linear}));
  }
  return comparisons;
}

TEST(LinearFindings, PairsDifferOnlyInTheAxesOfTheClaim) {
  const std::map<std::string, std::set<std::string>> axes = {{"fused", {"variant", "scan", "chunk"}},
                                                             {"scan_form", {"scan"}},
                                                             {"segments", {"segments"}},
                                                             {"chunk_64", {"chunk"}},
                                                             {"chunk_128", {"chunk"}},
                                                             {"gate_head", {"gate", "chunk"}},
                                                             {"gate_token", {"gate", "chunk"}},
                                                             {"gate_channel", {"gate", "chunk"}},
                                                             {"normalised", {"normalised", "chunk"}},
                                                             {"feature", {"feature", "chunk"}}};
  for (const DeviceInfo& device : {test::avx2(), test::hopper()}) {
    std::map<std::string, int> counts;
    for (const Duel& duel : duels(linear_claims(device), linear_results(device))) {
      const std::set<std::string>& free = axes.at(duel.hypothesis);
      EXPECT_EQ(duel.baseline.key_without(free), duel.contender.key_without(free)) << duel.hypothesis;
      EXPECT_NE(duel.baseline, duel.contender) << duel.hypothesis;
      ++counts[duel.hypothesis];
    }
    for (const auto& [id, axis] : axes) EXPECT_GT(counts[id], 0) << id << " on " << device.backend;
  }
}

// A claim does not judge a case by the samples that picked the case, so other processes measure the case again.
TEST(LinearFindings, OtherProcessesMeasureThePickedCasesAgain) {
  std::set<std::string> again;
  for (const DeviceInfo& device : {test::avx2(), test::hopper()}) {
    const std::vector<Measurement> results = linear_results(device);
    for (const Claim& claim : linear_claims(device)) {
      EXPECT_TRUE(claim.measured_again) << claim.hypothesis.id;
      if (!cases_of_claims({claim}, results).empty()) again.insert(claim.hypothesis.id);
    }
  }
  for (const char* id : {"device_scan", "floor", "rate_64", "rate_128"}) EXPECT_TRUE(again.contains(id)) << id;
}

TEST(LinearFindings, VerdictsFollowFromTheFigures) {
  const std::set<std::string> refuted = {"chunk_128", "flat",          "gate_head",      "gate_token", "gate_channel",
                                         "feature",   "crossover_256", "crossover_4096", "equivalence"};
  const DeviceInfo device = test::avx2();
  std::vector<Measurement> results = linear_results(device);
  const std::vector<Claim> claims = linear_claims(device);
  const std::vector<Comparison> comparisons = linear_comparisons(device, results);
  std::map<std::string, int> counts;
  for (const Conclusion& conclusion : conclude(claims, results, comparisons, test::steady_processes())) {
    const Hypothesis hypothesis = std::ranges::find_if(claims, [&](const Claim& c) {
                                    return c.hypothesis.id == conclusion.hypothesis;
                                  })->hypothesis;
    const State state = judge(hypothesis, conclusion).state;
    EXPECT_EQ(state, refuted.contains(hypothesis.id) ? State::refuted : State::supported)
        << hypothesis.id << " of " << conclusion.subject << ": " << conclusion.estimate.value;
    const Json finding = make_finding("proto6_linear", "fake", hypothesis, conclusion, "r");
    for (const char* text : {"title", "content"}) {
      EXPECT_EQ(finding.at(text).get<std::string>().find('{'), std::string::npos) << finding.at(text);
    }
    ++counts[hypothesis.id];
  }
  // On this device only the variant `recurrent` is memory-bound, so only its results have `copy_pct`. The claim `floor`
  // needs memory-bound results of the other variants.
  const std::set<std::string> memory_bound = {"floor"};
  for (const Claim& claim : claims) {
    EXPECT_EQ(counts[claim.hypothesis.id] == 0, memory_bound.contains(claim.hypothesis.id)) << claim.hypothesis.id;
  }
}

TEST(LinearFindings, TheFloorIsJudgedInMemoryBoundCases) {
  const DeviceInfo device = test::hopper();
  const std::vector<Measurement> results = linear_results(device);
  int floors = 0;
  for (const Conclusion& conclusion : conclude(linear_claims(device), results, {})) {
    if (conclusion.hypothesis != "floor") continue;
    EXPECT_NEAR(conclusion.estimate.value, 100.0 / 90, 1e-9);
    ++floors;
  }
  EXPECT_GT(floors, 5);
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

// Each claim has advice for a small figure, and advice for a large figure. The claims `chunk_64` and `chunk_128` are
// about the chunks at head_dim 64 and at head_dim 128.
TEST(LinearFindings, AdviceFitsFiguresBelowAndAboveTheThreshold) {
  using test::Choice;
  test::expect_advice(
      linear_claims(test::avx2()),
      {
          {"fused", {"Take the fused form", Choice::second}, {"Do not expect the fused form"}},
          {"scan_form", {"Scan in one pass that looks back", Choice::second}, {"Scan in passes", Choice::first}},
          {"segments", {"Let the rule cut", Choice::second}, {"Do not expect segments"}},
          {"chunk_64", {"take the study's chunk of 32", Choice::second}, {"take another chunk", Choice::first}, true},
          {"chunk_128", {"take the study's chunk of 16", Choice::second}, {"take another chunk", Choice::first}, true},
          {"host_scan_share", {"to take less than 0.8"}, {"Scan on the device"}},
          {"device_scan", {"Scan on the device", Choice::second}, {"Do not expect a scan on the device"}},
          {"flat", {"nearly the same time at any length"}, {"Expect the time to grow with the tokens"}},
          {"floor", {"at most 1.5 times as long as a copy"}, {"more than 1.5 times as long as a copy"}},
          {"rate_64", {"expect less than 70 %"}, {"expect at least 70 %"}},
          {"rate_128", {"expect less than 75 %"}, {"expect at least 75 %"}},
          {"scaling", {"grow at most with the tokens"}, {"cost more for each token"}},
          {"memory", {"keep less between its launches"}, {"Take longer chunks, or the fused form"}},
          {"gate_head", {"at most 1.1 times as long as no gate"}, {"more than 1.1 times as long as no gate"}},
          {"gate_token", {"at most 1.1 times as long as no gate"}, {"more than 1.1 times as long as no gate"}},
          {"gate_channel", {"at most 1.5 times as long as no gate"}, {"more than 1.5 times as long as no gate"}},
          {"normalised",
           {"Normalise in the kernel where the model wants it"},
           {"Expect a normalised output to take more"}},
          {"feature", {"Let the kernel apply the feature map"}, {"make the kernel take more than 1.15"}},
          {"decode_rate", {"less than 80 % of the rate of a copy"}, {"at least at 80 % of the rate of a copy"}},
          {"decode_break_even",
           {"Decode from a state where the context is longer"},
           {"Decode from a cache up to this context"}},
          {"crossover_256", {"Use linear attention from this length on"}, {"Use softmax attention below this length"}},
          {"equivalence",
           {"do not put it in the place of softmax attention"},
           {"mean cosine with those of softmax attention is at least 0.9"}},
          {"error_growth", {"to grow at most"}, {"to grow more than"}},
      });
}

}  // namespace
}  // namespace attn
