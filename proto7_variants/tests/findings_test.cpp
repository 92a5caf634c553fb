// Results in, duels and conclusions out: pure functions, on made-up results.
#include "proto7_variants/findings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/records/finding.h"
#include "common/testing/devices.h"
#include "proto7_variants/modifiers.h"
#include "proto7_variants/problem.h"
#include "proto7_variants/sweep.h"

namespace attn {
namespace {

using test::hopper;

// Each modifier takes a tenth longer, or three times as long without lists; pairs that are left take their time.
double seconds_of(const Measurement& result) {
  const double without_lists = result.config.integer("lists") == 0 ? 3 : 1;
  return result.work->flops * 1e-14 * without_lists *
         (1 + 0.1 * static_cast<double>(modifiers_on(result.config).size()));
}
// Hypotheses about two ways to the same mask, and how many modifiers their baselines and contenders have.
const std::map<std::string, std::pair<size_t, size_t>> two_ways = {
    {"window_by_list", {1, 2}}, {"window_lists", {3, 2}}, {"sparse_lists", {2, 1}}};

std::vector<Measurement> made_up() {
  std::vector<Measurement> results;
  const std::vector<Case> cases =
      expand(variants_sweep("quick", hopper()), variants_axes(), [](Case& c) { complete_variants(c, hopper()); });
  for (const Case& config : cases) {
    Measurement result;
    result.id = fmt::format("{:016x}", results.size());
    result.config = config;
    result.check = Check{};
    result.work = variants_plan(config, {hopper()}).work;
    result.pipeline = {{"code_bytes", 6000}, {"registers", 160}, {"spill_bytes", 0}};
    const double seconds = seconds_of(result);
    result.time = {Timing{Scope::device_hot, 10, 10, seconds, seconds, seconds, 0.01, seconds, "ci"}};
    results.push_back(result);
  }
  return results;
}

std::vector<Comparison> compare(const std::vector<Measurement>& results, const std::vector<Duel>& duels) {
  std::vector<Comparison> comparisons;
  const auto time = [&](const Case& config) {
    return std::ranges::find_if(results, [&](const Measurement& r) { return r.config == config; })->time;
  };
  for (const Duel& duel : duels) {
    Comparison comparison;
    comparison.hypothesis = duel.hypothesis;
    comparison.baseline = duel.baseline;
    comparison.contender = duel.contender;
    comparison.time = {time(duel.baseline).front(), time(duel.contender).front()};
    const double ratio = comparison.time[1].median_s / comparison.time[0].median_s;
    comparison.ratio = {ratio, 0.999 * ratio, 1.001 * ratio};
    comparison.aa = {1, 0.999, 1.001};
    comparison.cv = 0.01;
    comparisons.push_back(comparison);
  }
  return comparisons;
}

TEST(VariantsFindings, EachModifierIsComparedWithPlainAttentionOfItsShape) {
  const std::vector<Measurement> results = made_up();
  std::map<std::string, int> of;
  for (const Duel& duel : duels(variants_claims(), results)) {
    ++of[duel.hypothesis];
    const bool by_lists = two_ways.contains(duel.hypothesis);
    EXPECT_EQ(modifiers_on(duel.baseline).size(), by_lists ? two_ways.at(duel.hypothesis).first : 0);
    EXPECT_EQ(duel.baseline.text("dtype"), duel.contender.text("dtype"));
    EXPECT_EQ(duel.baseline.integer("causal"), duel.contender.integer("causal"));
    EXPECT_EQ(duel.baseline.integer("head_dim"), duel.contender.integer("head_dim"));
    EXPECT_EQ(modifiers_on(duel.contender).size(), duel.hypothesis == "together"        ? 4u
                                                   : duel.hypothesis == "global_tokens" ? 2u
                                                   : duel.hypothesis == "gqa_index"     ? 0u
                                                   : by_lists ? two_ways.at(duel.hypothesis).second
                                                              : 1u);
  }
  for (const Claim& claim : variants_claims()) EXPECT_GT(of[claim.hypothesis.id], 0) << claim.hypothesis.id;
}

TEST(VariantsFindings, VerdictsFollowFromTheFigures) {
  const std::vector<Measurement> results = made_up();
  const std::vector<Claim> claims = variants_claims();
  const std::vector<Conclusion> all = conclude(claims, results, compare(results, duels(claims, results)));
  for (const Conclusion& conclusion : all) {
    const Hypothesis hypothesis = std::ranges::find_if(claims, [&](const Claim& c) {
                                    return c.hypothesis.id == conclusion.hypothesis;
                                  })->hypothesis;
    // A tenth more is too much of ALiBi and sinks, and little beside what the others allow.
    const bool expected = hypothesis.id != "alibi" && hypothesis.id != "sinks";
    EXPECT_EQ(judge(hypothesis, conclusion).state, expected ? State::supported : State::refuted) << hypothesis.id;
    if (hypothesis.metric.find("over the share") != std::string::npos) {
      const double expected_share = hypothesis.id == "together" ? 1.4 : hypothesis.id == "global_tokens" ? 1.2 : 1.1;
      EXPECT_NEAR(conclusion.estimate.value, expected_share, 1e-6) << hypothesis.id;
    }
    const Json finding =
        make_finding("proto7_variants", "fake", hypothesis, conclusion, false, {{"id", "1"}}, {{"device", "x"}});
    EXPECT_FALSE(finding.at("title").get<std::string>().empty());
  }
  EXPECT_GE(all.size(), 30u);
}

}  // namespace
}  // namespace attn
