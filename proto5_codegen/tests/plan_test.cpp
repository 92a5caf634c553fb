// Tests that the problems of the generators `hand` and `compiler` launch the kernels of their plans.
#include <gtest/gtest.h>

#include "common/testing/devices.h"
#include "common/testing/planned_cases.h"
#include "proto5_codegen/problem.h"
#include "proto5_codegen/sweep.h"

namespace attn {
namespace {

TEST(CodegenPlanTest, ProblemsRunTheirPlans) {
  const ExperimentSpec spec = {.name = "test",
                               .summary = "of a test",
                               .axes = codegen_axes(),
                               .compared_axes = {},
                               .default_tile = false,
                               .sweep = codegen_sweep,
                               .complete = complete_codegen,
                               .plan = codegen_case_plan,
                               .make = codegen_problems()};
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_problems_run_their_plans(spec, info, {"q_len=64", "heads=1", "generator=hand,compiler"});
  }
}

}  // namespace
}  // namespace attn
