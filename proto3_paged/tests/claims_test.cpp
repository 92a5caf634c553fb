// The claims and the answer on made-up results.
#include "proto3_paged/claims.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "common/testing/claims.h"
#include "common/testing/planned_cases.h"
#include "proto3_paged/problem.h"
#include "proto3_paged/sweep.h"

namespace attn {
namespace {

/// The time grows in proportion to the bytes. Without a cascade each sequence reads the shared pages again.
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

test::MadeUp paged_on(const DeviceInfo& device) {
  return {.spec = paged_experiment(), .device = device, .seconds = paged_seconds, .also = [=](Measurement& result) {
            const Plan plan = paged_case_plan(result.config, {device});
            EXPECT_FALSE(skip_reason(plan, device)) << result.config.key() << ": " << *skip_reason(plan, device);
            result.values = {{"threadgroup_bytes", plan.launches.front().threadgroup_bytes},
                             {"waste", pool_figures(PagedConfig::from(result.config)).waste}};
            const std::string& type = result.config.text("cache_dtype");
            if (has_scales(parse_dtype(type))) result.values["cache_error"] = type == "int8" ? 0.01 : 0.04;
            result.copy_pct = Estimate{90, 89, 91};
            result.read_pct = Estimate{80, 79, 81};
          }};
}

TEST(PagedClaimsTest, OfMadeUpResults) {
  const test::MadeUp cpu = paged_on(test::avx2()), gpu = paged_on(test::hopper());
  test::expect_claims({test::Judged(cpu, "full"), test::Judged(gpu, "full")},
                      {{"paging", "page_size", "refuted supported"},
                       {"paging_9", "", "supported"},
                       {"paging_10", "", "refuted"},
                       {"paging_25", "", "supported"},
                       {"prefill_paging", "block_c page_size", "refuted supported"},
                       {"several_tokens", "q_len", "supported"},
                       {"rate", "", "supported"},
                       {"read_rate", "", "refuted"},
                       {"workers", "workers", "supported"},
                       {"reduce", "reduce", "refuted"},
                       {"cache_layout", "cache_layout", "supported"},
                       {"page_order", "page_order", "supported"},
                       {"packing", "q_heads", "supported"},
                       {"eight_bits", "cache_dtype", "supported"},
                       {"int8_error", "", "supported"},
                       {"alibi", "alibi", "supported"},
                       {"soft_cap", "soft_cap", "refuted"},
                       {"window", "window_left", "supported"},
                       {"append_fused", "append", "supported"},
                       {"append_cost", "append", "supported"},
                       {"prefill_fused", "append", "supported"},
                       {"cascade", "cascade", "supported"},
                       {"waste", "", "supported"},
                       {"viability", "", "refuted supported"}});
}

// Only pages of 16 tokens decide the claims `paging_9`, `paging_10` and `paging_25`. Only pages that the published
// kernel cannot hold in 32 KB decide the claim `viability`.
TEST(PagedClaimsTest, PublishedClaimsAreJudgedByTheirPages) {
  const std::map<int64_t, int64_t> pages_in_32_kb = {{64, 32}, {128, 16}, {192, 8}, {256, 4}};  // by head_dim
  for (const DeviceInfo& device : {test::avx2(), test::hopper()}) {
    const test::MadeUp made = paged_on(device);
    std::map<std::string, int> counts;
    for (const Conclusion& conclusion : made.conclusions(made.results("full"))) {
      ++counts[conclusion.hypothesis];
      if (conclusion.hypothesis.starts_with("paging_")) {
        EXPECT_TRUE(conclusion.subject.starts_with("page_size=16 ")) << conclusion.subject;
      } else if (conclusion.hypothesis.ends_with("paging") && device.on_host) {
        const bool small = conclusion.subject.starts_with("page_size=1 ");
        EXPECT_EQ(made.verdict(conclusion), small ? State::refuted : State::supported) << conclusion.subject;
      } else if (conclusion.hypothesis == "viability") {
        const int64_t head_dim = conclusion.values.at("head_dim");
        EXPECT_EQ(conclusion.values.at("page_in_32_kb"), pages_in_32_kb.at(head_dim)) << conclusion.subject;
        EXPECT_GT(conclusion.values.at("page_size"), pages_in_32_kb.at(head_dim)) << conclusion.subject;
        EXPECT_EQ(conclusion.estimate.value <= 1, device.on_host)
            << "only on a GPU, with several buffers of 64 keys, must the kernel take more than 32 KB";
      }
    }
    EXPECT_EQ(counts["paging_9"], counts["paging_10"]);
    EXPECT_LT(counts["paging_9"], counts["paging"]);
    EXPECT_EQ(counts["viability"], device.on_host ? 4 : 7);
    EXPECT_GE(counts["workers"], 5);
    EXPECT_GE(counts["reduce"], 5);
  }
}

TEST(PagedClaimsTest, ThePublishedKernelTakesTheBytesThatTheStudyGives) {
  for (const auto& [page_size, kb] : {std::pair{8, 8.5}, {16, 13.}, {32, 22.}, {64, 40.}}) {
    EXPECT_EQ(static_cast<double>(published_page_bytes(page_size, 64)) / 1024, kb);
  }
}

TEST(PagedSweepTest, FullHoldsQuick) { test::expect_sweep(paged_experiment()); }

TEST(PagedPlanTest, ProblemsRunTheirPlans) {
  test::expect_problems_run_their_plans(
      paged_experiment(),
      "q_len=1 kv_len=64 batch=2 q_heads=4 kv_heads=2 head_dim=64 page_size=16 workers=0 block_c=64");
}

TEST(PagedAnswerTest, TheFastestPageSizeIsChosen) {
  EXPECT_TRUE(test::taken_if_fast(paged_experiment(), "page_size=16").contains("16"));
  EXPECT_TRUE(test::taken_if_fast(paged_experiment(), "page_size=128").contains("128"));
}

}  // namespace
}  // namespace attn
