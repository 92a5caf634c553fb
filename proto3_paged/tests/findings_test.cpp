// Results in, duels and conclusions out: pure functions, on made-up results.
#include "proto3_paged/findings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/experiment/experiment.h"
#include "common/records/finding.h"
#include "common/testing/devices.h"
#include "proto3_paged/problem.h"
#include "proto3_paged/sweep.h"

namespace attn {
namespace {

/// Pages of 1 cost a half, other pages a hundredth; a second launch and any other number of workers a tenth; new tokens
/// three times as much again in a chain, and nothing where they are appended by the way.
double paged_seconds(const Measurement& result) {
  const Case& config = result.config;
  const int64_t page_size = config.integer("page_size");
  return result.work->bytes * 1e-11 *
         (page_size == 0   ? 1
          : page_size == 1 ? 1.5
                           : 1.01) *
         (config.text("append") == "chain" ? 4 : 1) * (config.text("reduce") == "launch" ? 1.1 : 1) *
         (config.integer("workers") == 0 ? 1 : 1.1);
}

std::vector<Measurement> paged_results(const DeviceInfo& device) {
  std::vector<Measurement> results;
  const auto complete = [&](Case& config) { complete_paged(config, device); };
  for (const Case& config : expand(paged_sweep("full", device), paged_axes(), complete)) {
    Measurement result;
    result.id = fmt::format("{:016x}", results.size());
    result.config = config;
    result.check = Check{};
    const Plan plan = paged_plan(config, {device});
    EXPECT_FALSE(skip_reason(plan, device)) << config.key() << ": " << *skip_reason(plan, device);
    result.work = plan.work;
    if (has_scales(parse_dtype(config.text("cache_dtype")))) {
      result.values = {{"cache_error", config.text("cache_dtype") == "int8" ? 0.01 : 0.04}};
    }
    result.copy_pct = Estimate{90, 89, 91};
    const double seconds = paged_seconds(result);
    result.time = {Timing{Scope::device_cold, 10, 10, seconds, seconds, seconds, 0.01, seconds, "ci"}};
    results.push_back(result);
  }
  return results;
}

std::vector<Comparison> paged_comparisons(const std::vector<Measurement>& results) {
  std::vector<Comparison> comparisons;
  const auto result_of = [&](const Case& config) -> const Measurement& {
    return *std::ranges::find_if(results, [&](const Measurement& r) { return r.config == config; });
  };
  for (const Duel& duel : duels(paged_claims(), results)) {
    const Measurement &baseline = result_of(duel.baseline), &contender = result_of(duel.contender);
    const double ratio = paged_seconds(contender) / paged_seconds(baseline);
    comparisons.push_back({.hypothesis = duel.hypothesis,
                           .baseline = duel.baseline,
                           .contender = duel.contender,
                           .ratio = {ratio, 0.999 * ratio, 1.001 * ratio},
                           .aa = {1, 0.999, 1.001},
                           .cv = 0.01,
                           .time = {baseline.time.front(), contender.time.front()}});
  }
  return comparisons;
}

TEST(PagedFindings, PairsDifferInTheClaimsAxisAlone) {
  const std::map<std::string, std::string> axes = {
      {"paging", "page_size"},       {"page_order", "page_order"}, {"cache_layout", "cache_layout"},
      {"reduce", "reduce"},          {"workers", "workers"},       {"packing", "q_heads"},
      {"eight_bits", "cache_dtype"}, {"append_fused", "append"},   {"append_cost", "append"}};
  for (const DeviceInfo& device : {test::avx2(), test::hopper()}) {
    std::map<std::string, int> of;
    for (const Duel& duel : duels(paged_claims(), paged_results(device))) {
      const std::string& axis = axes.at(duel.hypothesis);
      EXPECT_EQ(duel.baseline.key_without({axis}), duel.contender.key_without({axis})) << duel.hypothesis;
      EXPECT_NE(duel.baseline.key({axis}), duel.contender.key({axis})) << duel.hypothesis;
      ++of[duel.hypothesis];
    }
    for (const auto& [id, axis] : axes) EXPECT_GT(of[id], 0) << id;
  }
}

TEST(PagedFindings, VerdictsFollowFromTheFigures) {
  const std::vector<Measurement> results = paged_results(test::avx2());
  const std::vector<Claim> claims = paged_claims();
  std::map<std::string, int> of;
  for (const Conclusion& conclusion : conclude(claims, results, paged_comparisons(results))) {
    const Hypothesis hypothesis = std::ranges::find_if(claims, [&](const Claim& c) {
                                    return c.hypothesis.id == conclusion.hypothesis;
                                  })->hypothesis;
    const bool small_pages = conclusion.subject.starts_with("page_size=1 ");
    const bool refuted = hypothesis.id == "reduce" || (hypothesis.id == "paging" && small_pages);
    EXPECT_EQ(judge(hypothesis, conclusion).state, refuted ? State::refuted : State::supported)
        << hypothesis.id << " of " << conclusion.subject;
    const Json finding =
        make_finding("proto3_paged", "fake", hypothesis, conclusion, false, {{"id", "1"}}, {{"device", "x"}});
    EXPECT_EQ(finding.at("title").get<std::string>().find('{'), std::string::npos) << finding.at("title");
    ++of[hypothesis.id];
  }
  for (const Claim& claim : claims) EXPECT_GT(of[claim.hypothesis.id], 0) << claim.hypothesis.id;
}

}  // namespace
}  // namespace attn
