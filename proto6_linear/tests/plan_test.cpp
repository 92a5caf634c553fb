// Tests that the problems of the experiment launch the kernels of their plans.
#include <gtest/gtest.h>

#include "common/testing/devices.h"
#include "common/testing/planned_cases.h"
#include "proto6_linear/problem.h"
#include "proto6_linear/sweep.h"

namespace attn {
namespace {

TEST(LinearPlanTest, ProblemsRunTheirPlans) {
  const ExperimentSpec spec = {.name = "test",
                               .summary = "of a test",
                               .axes = linear_axes(),
                               .compared_axes = {},
                               .default_tile = false,
                               .sweep = linear_sweep,
                               .complete = complete_linear,
                               .plan = linear_case_plan,
                               .make = linear_problems(),
                               .make_host = host_scan_problems()};
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_problems_run_their_plans(
        spec, info,
        {"q_len=64", "heads=1", "batch=1", "head_dim=64", "chunk=32", "segments=0", "gate=none", "feature=identity"});
  }
}

}  // namespace
}  // namespace attn
