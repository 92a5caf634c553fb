// Tests that the problems of task=run launch the kernels of their plans.
#include <gtest/gtest.h>

#include "common/testing/devices.h"
#include "common/testing/planned_cases.h"
#include "proto4_constants/problem.h"
#include "proto4_constants/sweep.h"

namespace attn {
namespace {

TEST(ConstantsPlanTest, ProblemsRunTheirPlans) {
  const ExperimentSpec spec = {.name = "test",
                               .summary = "of a test",
                               .axes = constants_axes(),
                               .compared_axes = {},
                               .default_tile = false,
                               .sweep = constants_sweep,
                               .complete = complete_constants,
                               .plan = constants_plan,
                               .make = constants_launches()};
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_problems_run_their_plans(spec, info, {"task=run", "q_len=48", "q_heads=1"});
  }
}

}  // namespace
}  // namespace attn
