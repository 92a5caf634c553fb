// Tests that each problem of the experiment launches the kernels of the problem's plan.
#include <gtest/gtest.h>

#include "common/testing/devices.h"
#include "common/testing/planned_cases.h"
#include "proto2_stitching/problem.h"
#include "proto2_stitching/sweep.h"

namespace attn {
namespace {

TEST(StitchPlanTest, ProblemsRunTheirPlans) {
  const ExperimentSpec spec = {.name = "test",
                               .summary = "of a test",
                               .axes = stitch_axes(),
                               .compared_axes = {},
                               .default_tile = false,
                               .sweep = stitch_sweep,
                               .complete = complete_stitch,
                               .plan = stitch_case_plan,
                               .make = stitch_problems()};
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_problems_run_their_plans(spec, info,
                                          {"q_len=48", "q_heads=1", "batch=1", "head_dim=64", "function=alibi",
                                           "grain=element", "variant=" + default_variant(info)});
  }
}

}  // namespace
}  // namespace attn
