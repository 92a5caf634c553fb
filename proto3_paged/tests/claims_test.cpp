// Runs the claims on made-up results: the claims choose duels (pairs of cases that are measured again) and draw
// conclusions.
#include "proto3_paged/claims.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
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
#include "proto3_paged/problem.h"
#include "proto3_paged/sweep.h"

namespace attn {
namespace {

/// Returns the made-up time of a case, which grows in proportion to the bytes. Without a cascade each sequence reads
/// the shared pages again.
double paged_seconds(const Measurement& result) {
  const Case& config = result.config;
  const int64_t page_size = config.integer("page_size");
  const bool again = config.text("page_order") == "shared" && config.integer("cascade") == 0;
  return (result.work->bytes + (again ? repeated_bytes(PagedConfig::from(config)) : 0)) * 1e-11 *
         (page_size == 0   ? 1
          : page_size == 1 ? 1.5
                           : 1.01) *
         (config.integer("soft_cap") == 0 ? 1 : 1.2) * (config.text("append") == "chain" ? 4 : 1) *
         (config.text("reduce") == "launch" ? 1.1 : 1) * (config.integer("workers") == 0 ? 1 : 1.1);
}

std::vector<Measurement> paged_results(const DeviceInfo& device) {
  std::vector<Measurement> results;
  const auto complete = [&](Case& config) { complete_paged(config, device); };
  for (const Case& config : expand(paged_sweep("full", device), paged_axes(), complete)) {
    Measurement result;
    result.id = fmt::format("{:016x}", results.size());
    result.config = config;
    result.check = Check{};
    const Plan plan = paged_case_plan(config, {device});
    EXPECT_FALSE(skip_reason(plan, device)) << config.key() << ": " << *skip_reason(plan, device);
    result.work = plan.work;
    result.values = {{"threadgroup_bytes", plan.launches.front().threadgroup_bytes},
                     {"waste", pool_figures(PagedConfig::from(config)).waste}};
    if (has_scales(parse_dtype(config.text("cache_dtype")))) {
      result.values["cache_error"] = config.text("cache_dtype") == "int8" ? 0.01 : 0.04;
    }
    result.copy_pct = Estimate{90, 89, 91};
    result.read_pct = Estimate{80, 79, 81};
    const double seconds = paged_seconds(result);
    const Scope scope = plan.work.bound == Bound::memory ? Scope::device_cold : Scope::device_hot;
    result.time = {Timing{scope, 10, 10, seconds, seconds, seconds, 0.01, seconds, "ci"}};
    results.push_back(result);
  }
  return results;
}

std::vector<Comparison> paged_comparisons(const DeviceInfo& device, const std::vector<Measurement>& results) {
  std::vector<Comparison> comparisons;
  const auto result_of = [&](const Case& config) -> const Measurement& {
    return *std::ranges::find_if(results, [&](const Measurement& r) { return r.config == config; });
  };
  for (const Duel& duel : duels(paged_claims(device), results)) {
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

TEST(PagedFindings, PairsDifferOnlyInTheAxisOfTheClaim) {
  const std::map<std::string, std::string> axes = {{"paging", "page_size"},
                                                   {"page_order", "page_order"},
                                                   {"cache_layout", "cache_layout"},
                                                   {"reduce", "reduce"},
                                                   {"workers", "workers"},
                                                   {"packing", "q_heads"},
                                                   {"eight_bits", "cache_dtype"},
                                                   {"append_fused", "append"},
                                                   {"append_cost", "append"},
                                                   {"cascade", "cascade"},
                                                   {"alibi", "alibi"},
                                                   {"soft_cap", "soft_cap"},
                                                   {"window", "window_left"},
                                                   {"prefill_paging", "page_size"},
                                                   {"prefill_fused", "append"}};
  for (const DeviceInfo& device : {test::avx2(), test::hopper()}) {
    std::map<std::string, int> counts;
    for (const Duel& duel : duels(paged_claims(device), paged_results(device))) {
      const std::string& axis = axes.at(duel.hypothesis);
      const bool tiles_follow = duel.hypothesis.starts_with("prefill");
      const std::set<std::string> free = tiles_follow ? std::set<std::string>{axis, "block_c"} : std::set{axis};
      EXPECT_EQ(duel.baseline.key_without(free), duel.contender.key_without(free)) << duel.hypothesis;
      EXPECT_NE(duel.baseline.key({axis}), duel.contender.key({axis})) << duel.hypothesis;
      ++counts[duel.hypothesis];
    }
    for (const auto& [id, axis] : axes) EXPECT_GT(counts[id], 0) << id;
  }
}

TEST(PagedFindings, VerdictsFollowFromTheFigures) {
  const DeviceInfo device = test::avx2();
  const std::vector<Measurement> results = paged_results(device);
  const std::vector<Claim> claims = paged_claims(device);
  std::map<std::string, int> counts;
  for (const Conclusion& conclusion :
       conclude(claims, results, paged_comparisons(device, results), test::steady_processes())) {
    const Hypothesis hypothesis = std::ranges::find_if(claims, [&](const Claim& c) {
                                    return c.hypothesis.id == conclusion.hypothesis;
                                  })->hypothesis;
    const bool small_pages = conclusion.subject.starts_with("page_size=1 ");
    const bool refuted = hypothesis.id == "reduce" || hypothesis.id == "soft_cap" || hypothesis.id == "paging_10" ||
                         hypothesis.id == "read_rate" || (hypothesis.id.ends_with("paging") && small_pages);
    EXPECT_EQ(judge(hypothesis, conclusion).state, refuted ? State::refuted : State::supported)
        << hypothesis.id << " of " << conclusion.subject;
    const Json finding = make_finding("proto3_paged", "fake", hypothesis, conclusion, "r");
    EXPECT_EQ(finding.at("title").get<std::string>().find('{'), std::string::npos) << finding.at("title");
    ++counts[hypothesis.id];
  }
  for (const Claim& claim : claims) EXPECT_GT(counts[claim.hypothesis.id], 0) << claim.hypothesis.id;
}

// Only pages of 16 tokens decide the claims `paging_9`, `paging_10` and `paging_25`. Only pages that the published
// kernel cannot hold in 32 KB decide the claim `viability`.
TEST(PagedFindings, PublishedClaimsAreJudgedByTheirPages) {
  const std::map<int64_t, int64_t> pages_in_32_kb = {{64, 32}, {128, 16}, {192, 8}, {256, 4}};  // by head_dim
  for (const DeviceInfo& device : {test::avx2(), test::hopper()}) {
    const std::vector<Measurement> results = paged_results(device);
    std::map<std::string, int> counts;
    for (const Conclusion& conclusion : conclude(paged_claims(device), results, paged_comparisons(device, results))) {
      if (conclusion.hypothesis.starts_with("paging_")) {
        EXPECT_TRUE(conclusion.subject.starts_with("page_size=16 ")) << conclusion.subject;
      } else if (conclusion.hypothesis == "viability") {
        const int64_t head_dim = conclusion.values.at("head_dim");
        EXPECT_EQ(conclusion.values.at("page_in_32_kb"), pages_in_32_kb.at(head_dim)) << conclusion.subject;
        EXPECT_GT(conclusion.values.at("page_size"), pages_in_32_kb.at(head_dim)) << conclusion.subject;
        EXPECT_EQ(conclusion.estimate.value <= 1, device.on_host)
            << "only on a GPU, with several buffers of 64 keys, must the kernel take more than 32 KB";
      }
      ++counts[conclusion.hypothesis];
    }
    EXPECT_EQ(counts["paging_9"], counts["paging_10"]);
    EXPECT_LT(counts["paging_9"], counts["paging"]);
    EXPECT_EQ(counts["viability"], 4);
    EXPECT_GE(counts["workers"], 5);
    EXPECT_GE(counts["reduce"], 5);
  }
}

TEST(PagedFindings, ThePublishedKernelTakesTheBytesThatTheStudyGives) {
  for (const auto& [page_size, kb] : {std::pair{8, 8.5}, {16, 13.}, {32, 22.}, {64, 40.}}) {
    EXPECT_EQ(static_cast<double>(published_page_bytes(page_size, 64)) / 1024, kb);
  }
}

// For each claim that gives advice, the table has words of the advice for a figure below the claim's threshold, and
// words of the advice for a figure above the threshold.
TEST(PagedFindings, AdviceFitsFiguresBelowAndAboveTheThreshold) {
  using test::Choice;
  test::expect_advice(
      paged_claims(test::avx2()),
      {
          {"paging", {"Put the cache on pages", Choice::second}, {"use a contiguous cache", Choice::first}, true},
          {"prefill_paging",
           {"Let prompts attend over the cache's pages", Choice::second},
           {"Expect prompts over pages to take more"},
           true},
          {"rate", {"at less than 85 % of the rate of a copy"}, {"at least at 85 % of the rate of a copy"}},
          {"read_rate", {"at less than 85 % of the rate of a read"}, {"at least at 85 % of the rate of a read"}},
          {"workers",
           {"Leave the number of workers to the rule", Choice::second},
           {"Name the number of workers", Choice::first},
           true},
          {"reduce",
           {"by a second launch where that is simpler", Choice::second},
           {"Let the last worker join", Choice::first},
           true},
          {"cache_layout",
           {"by what writes the cache", Choice::second},
           {"Keep tokens before heads", Choice::first},
           true},
          {"page_order",
           {"Take any free page", Choice::second},
           {"Keep the pages of a sequence in order", Choice::first},
           true},
          {"packing",
           {"Share keys among as many query heads", Choice::second},
           {"Expect query heads that share keys to take more"},
           true},
          {"eight_bits", {"Store the cache in 8 bits", Choice::second}, {"Do not expect an 8-bit cache to take 0.58"}},
          {"int8_error", {"Prefer int8 to e4m3", Choice::second}, {"Do not expect int8"}},
          {"alibi", {"use ALiBi where the model wants it"}, {"Expect ALiBi to make decoding take more"}},
          {"soft_cap", {"use a soft cap where the model wants it"}, {"Expect a soft cap to make decoding take more"}},
          {"window", {"at most 1.5 times the share of keys"}, {"more than 1.5 times the share of keys"}},
          {"append_fused",
           {"Fuse rotation and cache writes into decoding", Choice::second},
           {"Do not expect fused decoding"}},
          {"append_cost", {"Append tokens while decoding"}, {"Expect decoding that also rotates and writes"}},
          {"prefill_fused",
           {"Fuse rotation and cache writes into prefill", Choice::second},
           {"Do not expect fused prefill"}},
          // This claim's advice has no Choice: a cascade that takes more than 1.1 times the share of bytes may still
          // save time.
          {"cascade", {"Read a prefix that sequences share once"}, {"Expect less from reading a shared prefix once"}},
          {"waste", {"Take pages of 16"}, {"Take pages below 16"}},
          {"viability", {"threadgroup memory does not bound it"}, {"Count the threadgroup memory of a block"}},
      });
}

}  // namespace
}  // namespace attn
