#include <gtest/gtest.h>

#include "common/cases/axes.h"
#include "common/cases/problem.h"
#include "common/testing/devices.h"
#include "common/testing/planned_cases.h"
#include "proto1_flash/sweep.h"

namespace attn {
namespace {

TEST(FlashPlanTest, ProblemsRunTheirPlans) {
  const ExperimentSpec spec = {.name = "test",
                               .summary = "of a test",
                               .axes = flash_axes(),
                               .compared_axes = {},
                               .default_tile = false,
                               .sweep = flash_sweep,
                               .complete = complete_flash,
                               .plan = flash_plan,
                               .make = flash_problems()};
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_problems_run_their_plans(spec, info,
                                          {"q_len=48", "q_heads=1", "kv_heads=1", "head_dim=64", "causal=1",
                                           "layout=bhsd", "dtype=f32", "block_r=64", "block_c=64"});
  }
}

}  // namespace
}  // namespace attn
