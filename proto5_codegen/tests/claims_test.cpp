// The claims turn results into duels (pairs of cases that are measured again) and conclusions. The tests run the
// claims' functions on made-up results.
#include "proto5_codegen/claims.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/launch/plan.h"
#include "common/records/finding.h"
#include "common/testing/advice.h"
#include "common/testing/devices.h"
#include "common/testing/made_up.h"
#include "proto5_codegen/generators.h"
#include "proto5_codegen/sweep.h"

namespace attn {
namespace {

/// Returns a made-up time: a nanosecond for each pair of query and key, times the generator's factor.
double made_up_seconds(const Case& config) {
  static const std::map<std::string, double> factors = {
      {"hand", 1},           {"search", 0.9},   {"compiler", 4}, {"halide_plain", 5}, {"halide_auto", 4.5},
      {"halide_tuned", 1.4}, {"halide_gpu", 3}, {"triton", 1.5}, {"tilelang", 1.45}};
  const double tokens = static_cast<double>(config.integer("q_len"));
  return 1e-9 * tokens * tokens * factors.at(config.text("generator"));
}

Measurement made_up(const Case& config, size_t number) {
  Measurement result;
  result.id = fmt::format("{:016x}", number);
  result.config = config;
  result.check = Check{};
  const bool hand = config.text("generator") == "hand";
  result.values = {{"source_lines", hand ? 600 : 40}};
  if (config.text("generator") == "search") {
    result.values.update({{"searched_q_len", 1024}, {"searched_heads", 8}});
  }
  result.pipeline = {
      {"compile_s", hand ? 0.1 : 0.4},
      {"loop", {{"instructions", 80}, {"multiply_add", hand ? 48 : 24}, {"load_4", 12}, {"load_64", 8}}}};
  result.work = CodegenCase::from(config).amount();
  const bool memory = result.work->bound == Bound::memory;
  const double seconds = made_up_seconds(config);
  for (const Scope scope : {memory ? Scope::device_cold : Scope::device_hot, Scope::host}) {
    result.time.push_back({scope, 10, 10, seconds, 0.999 * seconds, 1.001 * seconds, 0.01, seconds, "ci"});
  }
  return result;
}

std::vector<Measurement> made_up_results(const DeviceInfo& device) {
  std::vector<Measurement> results;
  const auto complete = [&](Case& config) { complete_codegen(config, device); };
  for (const Case& config : expand(codegen_sweep("full", device), codegen_axes(), complete)) {
    results.push_back(made_up(config, results.size()));
  }
  return results;
}

std::vector<Conclusion> made_up_conclusions(const std::vector<Measurement>& results) {
  std::vector<Comparison> comparisons;
  for (const Duel& duel : duels(codegen_claims(), results)) {
    comparisons.push_back(
        test::made_up_comparison(duel, made_up_seconds(duel.baseline), made_up_seconds(duel.contender)));
  }
  return conclude(codegen_claims(), results, comparisons, test::steady_processes());
}

TEST(CodegenFindings, PairsDifferOnlyInTheGenerator) {
  for (const DeviceInfo& device : {test::avx2(), test::hopper()}) {
    const auto pairs = duels(codegen_claims(), made_up_results(device));
    EXPECT_FALSE(pairs.empty());
    for (const Duel& duel : pairs) {
      EXPECT_EQ(duel.baseline.key_without({"generator"}), duel.contender.key_without({"generator"}));
      EXPECT_NE(duel.baseline, duel.contender);
    }
  }
}

TEST(CodegenFindings, EveryClaimIsJudgedByTheFigures) {
  const std::map<std::string, State> cpu = {
      {"slower", State::supported},       {"published", State::refuted},
      {"search", State::supported},       {"search_elsewhere", State::supported},
      {"inner_loop", State::supported},   {"generation", State::refuted},
      {"lines_compiler", State::refuted}, {"schedule", State::supported},
      {"autoscheduler", State::refuted},  {"lines_halide_tuned", State::supported}};
  for (const DeviceInfo& device : {test::avx2(), test::hopper()}) {
    std::set<std::string> judged;
    for (const Conclusion& conclusion : made_up_conclusions(made_up_results(device))) {
      judged.insert(conclusion.hypothesis);
      const auto all = hypotheses(codegen_claims());
      const auto hypothesis = std::ranges::find(all, conclusion.hypothesis, &Hypothesis::id);
      ASSERT_NE(hypothesis, all.end());
      const State state = judge(*hypothesis, conclusion).state;
      if (!device.on_host || conclusion.hypothesis == "viable") continue;
      EXPECT_EQ(state, cpu.at(conclusion.hypothesis)) << conclusion.hypothesis << " " << conclusion.estimate.value;
    }
    const std::set<std::string> of_other_devices =
        device.on_host ? std::set<std::string>{"lines_triton", "lines_tilelang", "lines_halide_gpu"}
                       : std::set<std::string>{"lines_halide_tuned", "schedule", "autoscheduler"};
    for (const Hypothesis& hypothesis : hypotheses(codegen_claims())) {
      EXPECT_NE(judged.contains(hypothesis.id), of_other_devices.contains(hypothesis.id))
          << hypothesis.id << " on " << device.backend;
    }
  }
}

// A claim does not judge a case by the samples that picked the case, so other processes measure the case again. The
// claim `generation` needs no new samples: it picks cases by run times, but judges compile times.
TEST(CodegenFindings, OtherProcessesMeasureThePickedCasesAgain) {
  for (const Claim& claim : codegen_claims()) {
    EXPECT_EQ(claim.measured_again, claim.hypothesis.id != "generation") << claim.hypothesis.id;
  }
}

// A search chose its constants at one shape. The claim `search` is about this shape, `search_elsewhere` about the
// others. Neither is about a case for which nobody searched.
TEST(CodegenFindings, TheShapeOfASearchHasItsOwnClaim) {
  std::vector<Measurement> results = made_up_results(test::avx2());
  std::map<std::string, int> counts;
  for (const Duel& duel : duels(codegen_claims(), results)) {
    if (!duel.hypothesis.starts_with("search")) continue;
    const bool here = duel.contender.integer("q_len") == 1024 && duel.contender.integer("heads") == 8;
    EXPECT_EQ(duel.hypothesis, here ? "search" : "search_elsewhere") << duel.contender.key();
    ++counts[duel.hypothesis];
  }
  EXPECT_EQ(counts.size(), 2u);
  for (Measurement& result : results) result.values.erase("searched_q_len");
  for (const Duel& duel : duels(codegen_claims(), results)) EXPECT_FALSE(duel.hypothesis.starts_with("search"));
}

TEST(CodegenFindings, SubjectsNameTheGenerator) {
  std::set<std::string> viable;
  for (const Conclusion& conclusion : made_up_conclusions(made_up_results(test::avx2()))) {
    if (conclusion.hypothesis != "viable") continue;
    EXPECT_TRUE(viable.insert(conclusion.subject).second) << conclusion.subject;
  }
  EXPECT_GT(viable.size(), 8u);
}

// Each claim has advice for a small figure, and advice for a large figure.
TEST(CodegenFindings, AdviceFitsFiguresBelowAndAboveTheThreshold) {
  using test::Choice;
  test::expect_advice(
      codegen_claims(),
      {
          {"slower", {"Try a generator before"}, {"Take the hand-written kernel", Choice::first}},
          {"published", {"Try a generator before"}, {"Take the hand-written Q K^T", Choice::first}},
          {"viable", {"Take the generator", Choice::second}, {"do not take the generator", Choice::first}, true},
          {"search", {"Search the constants on the device", Choice::second}, {"Do not expect searched constants"}},
          {"search_elsewhere",
           {"Use constants that were searched at another shape", Choice::second},
           {"Do not expect constants that were searched"}},
          {"generation", {"Expect a generator to take less"}, {"Generate ahead of time"}},
          {"lines_compiler",
           {"write the kernel as plain loops", Choice::second},
           {"more than 0.25 of the hand-written lines"}},
          {"lines_triton",
           {"write the kernel in Triton", Choice::second},
           {"more than 0.25 of the hand-written lines"}},
          {"lines_tilelang",
           {"write the kernel in TileLang", Choice::second},
           {"more than 0.25 of the hand-written lines"}},
          {"lines_halide_gpu",
           {"write the kernel in Halide.", Choice::second},
           {"more than 0.25 of the hand-written lines"}},
          {"lines_halide_tuned",
           {"in Halide, with a schedule", Choice::second},
           {"more than 0.25 of the hand-written lines"}},
          {"schedule", {"Write Halide's schedule", Choice::second}, {"Do not expect a schedule of your own"}},
          {"autoscheduler", {"Ask Halide's autoscheduler", Choice::second}, {"Do not expect Halide's autoscheduler"}},
      });
}

}  // namespace
}  // namespace attn
