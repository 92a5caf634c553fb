// Tests that each problem of the experiment launches the kernels of the problem's plan.
#include <gtest/gtest.h>

#include "common/testing/devices.h"
#include "common/testing/planned_cases.h"
#include "proto3_paged/problem.h"
#include "proto3_paged/sweep.h"

namespace attn {
namespace {

TEST(PagedPlanTest, ProblemsRunTheirPlans) {
  const ExperimentSpec spec = {.name = "test",
                               .summary = "of a test",
                               .axes = paged_axes(),
                               .compared_axes = {},
                               .default_tile = false,
                               .sweep = paged_sweep,
                               .complete = complete_paged,
                               .plan = paged_case_plan,
                               .make = paged_problems()};
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_problems_run_their_plans(spec, info,
                                          {"q_len=1", "kv_len=64", "batch=2", "q_heads=4", "kv_heads=2", "head_dim=64",
                                           "page_size=16", "workers=0", "block_c=64"});
  }
}

}  // namespace
}  // namespace attn
