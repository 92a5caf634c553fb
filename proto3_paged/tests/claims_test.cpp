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
  test::expect_claims(
      {test::Judged(cpu, "full"), test::Judged(gpu, "full")},
      {{"paging", "page_size", "refuted supported", "Put the cache on pages", "use a contiguous cache"},
       {"paging_9", "", "supported"},
       {"paging_10", "", "refuted"},
       {"paging_25", "", "supported"},
       {"prefill_paging", "block_c page_size", "refuted supported", "Let prompts attend over", "Expect prompts over"},
       {"several_tokens", "q_len", "supported", "Check several drafted tokens in one launch", "Expect several new"},
       {"rate", "", "supported", "at less than 85 % of the rate of a copy", "at least at 85 % of the rate of a copy"},
       {"read_rate", "", "refuted", "at less than 85 % of the rate of a", "at least at 85 % of the rate of a read"},
       {"workers", "workers", "supported", "Leave the number of workers to the rule", "Name the number of workers"},
       {"reduce", "reduce", "refuted", "by a second launch where that is simpler", "Let the last worker join"},
       {"cache_layout", "cache_layout", "supported", "by what writes the cache", "Keep tokens before heads"},
       {"page_order", "page_order", "supported", "Take any free page", "Keep the pages of a sequence in order"},
       {"packing", "q_heads", "supported", "Share keys among as many query", "Expect query heads that share keys"},
       {"eight_bits", "cache_dtype", "supported", "Store the cache in 8 bits", "Do not expect an 8-bit cache"},
       {"int8_error", "", "supported", "Prefer int8 to e4m3", "Do not expect int8"},
       {"alibi", "alibi", "supported", "use ALiBi where the model wants it", "Expect ALiBi to make decoding take"},
       {"soft_cap", "soft_cap", "refuted", "use a soft cap where the model wants it", "Expect a soft cap to make"},
       {"window", "window_left", "supported", "at most 1.5 times the share of", "more than 1.5 times the share of"},
       {"append_fused", "append", "supported", "Fuse rotation and cache writes into decoding", "Do not expect fused"},
       {"append_cost", "append", "supported", "Append tokens while decoding", "Expect decoding that also rotates"},
       {"prefill_fused", "append", "supported", "Fuse rotation and cache writes into prefill", "Do not expect fused"},
       {"cascade", "cascade", "supported", "Read a prefix that sequences share once", "Expect less from reading"},
       {"waste", "", "supported", "Take pages of 16", "Take pages below 16"},
       {"viability", "", "refuted supported", "threadgroup memory does not bound it", "Count the threadgroup memory"}});
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
