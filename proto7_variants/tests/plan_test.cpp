// Tests that the problems of the experiment launch the kernels of their plans.
#include <gtest/gtest.h>

#include "common/testing/devices.h"
#include "common/testing/planned_cases.h"
#include "proto7_variants/problem.h"
#include "proto7_variants/sweep.h"

namespace attn {
namespace {

TEST(VariantsPlanTest, ProblemsRunTheirPlans) {
  const ExperimentSpec spec = {.name = "test",
                               .summary = "of a test",
                               .axes = variants_axes(),
                               .compared_axes = {},
                               .default_tile = false,
                               .sweep = variants_sweep,
                               .complete = complete_variants,
                               .plan = variants_case_plan,
                               .make = variants_problems()};
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_problems_run_their_plans(
        spec, info, {"q_len=64", "q_heads=4", "kv_heads=2", "head_dim=64", "block_r=64", "block_c=64", "causal=1"});
  }
}

}  // namespace
}  // namespace attn
