// The claims, the plans and the answer on made-up results.
#include "proto5_codegen/claims.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/testing/claims.h"
#include "common/testing/planned_cases.h"
#include "proto5_codegen/generators.h"
#include "proto5_codegen/sweep.h"

namespace attn {
namespace {

// A nanosecond for each pair of query and key, times the generator's factor.
double codegen_seconds(const Measurement& result) {
  static const std::map<std::string, double> factors = {
      {"hand", 1},           {"search", 0.9},   {"compiler", 4}, {"halide_plain", 5}, {"halide_auto", 4.5},
      {"halide_tuned", 1.4}, {"halide_gpu", 3}, {"triton", 1.5}, {"tilelang", 1.45}};
  const double tokens = static_cast<double>(result.config.integer("q_len"));
  return 1e-9 * tokens * tokens * factors.at(result.config.text("generator"));
}

// The generators need not be there: each case is made as a case of hand-written kernels is.
test::MadeUp codegen_on(const DeviceInfo& device) {
  test::MadeUp made{.spec = codegen_experiment(), .device = device, .seconds = codegen_seconds};
  made.spec.plan = [](const Case& config, const Setting&) {
    Plan plan;
    plan.work = CodegenCase::from(config).amount();
    return CasePlan(plan);
  };
  made.also = [](Measurement& result) {
    const std::string& generator = result.config.text("generator");
    const bool hand = generator == "hand";
    result.values = {{"source_lines", hand ? 600 : 40}};
    if (generator == "search") result.values.update({{"searched_q_len", 1024}, {"searched_heads", 8}});
    result.pipeline = {
        {"compile_s", hand ? 0.1 : 0.4},
        {"loop", {{"instructions", 80}, {"multiply_add", hand ? 48 : 24}, {"load_4", 12}, {"load_64", 8}}}};
  };
  return made;
}

TEST(CodegenClaimsTest, OfMadeUpResults) {
  const test::MadeUp cpu = codegen_on(test::avx2()), gpu = codegen_on(test::hopper());
  test::expect_claims({test::Judged(cpu, "full"), test::Judged(gpu, "full")},
                      {{"slower", "generator", "supported"},
                       {"published", "generator", "refuted supported"},
                       {"viable", "generator", "refuted"},
                       {"search", "generator", "supported"},
                       {"search_elsewhere", "generator", "supported"},
                       {"generation", "", "refuted"},
                       {"inner_loop", "", "supported"},
                       {"lines_compiler", "", "refuted"},
                       {"lines_triton", "", "supported"},
                       {"lines_tilelang", "", "supported"},
                       {"lines_halide_gpu", "", "supported"},
                       {"lines_halide_tuned", "", "supported"},
                       {"schedule", "generator", "supported"},
                       {"autoscheduler", "generator", "refuted"}});
  // The claim picks cases by run times, but judges compile times, which another process would read from a cache.
  for (const Claim& claim : cpu.claims()) EXPECT_EQ(claim.measured_again, claim.hypothesis.id != "generation");
}

// A search chose its constants at one shape. The claim `search` is about this shape, `search_elsewhere` about the
// others. Neither is about a case for which nobody searched.
TEST(CodegenClaimsTest, TheShapeOfASearchHasItsOwnClaim) {
  const test::MadeUp made = codegen_on(test::avx2());
  std::vector<Measurement> results = made.results("full");
  for (const Duel& duel : duels(made.claims(), results)) {
    if (!duel.hypothesis.starts_with("search")) continue;
    const bool here = duel.contender.integer("q_len") == 1024 && duel.contender.integer("heads") == 8;
    EXPECT_EQ(duel.hypothesis, here ? "search" : "search_elsewhere") << duel.contender.key();
  }
  for (Measurement& result : results) result.values.erase("searched_q_len");
  for (const Duel& duel : duels(made.claims(), results)) EXPECT_FALSE(duel.hypothesis.starts_with("search"));
}

TEST(CodegenSweepTest, FullHoldsQuick) { test::expect_sweep(codegen_experiment()); }

TEST(CodegenPlanTest, ProblemsRunTheirPlans) {
  test::expect_problems_run_their_plans(codegen_experiment(), "q_len=64 heads=1 generator=hand,compiler");
}

TEST(CodegenAnswerTest, TheFastestGeneratorIsTheChoice) {
  EXPECT_TRUE(test::taken_if_fast(codegen_experiment(), "generator=hand").contains("hand"));
  EXPECT_TRUE(test::taken_if_fast(codegen_experiment(), "generator=compiler").contains("compiler"));
}

}  // namespace
}  // namespace attn
