// Tests the answer that a run prints at its end. The results are made up.
#include <gtest/gtest.h>

#include "common/testing/answers.h"
#include "common/testing/devices.h"
#include "proto2_stitching/claims.h"
#include "proto2_stitching/sweep.h"

namespace attn {
namespace {

TEST(StitchAnswerTest, NamesClaimsOfTheExperiment) {
  const std::vector<Claim> claims = stitch_claims(2);
  EXPECT_EQ(test::unknown_claims(stitch_answer(), claims), std::vector<std::string>());
}

TEST(StitchAnswerTest, TheFastestFormIsTheChoice) {
  const DeviceInfo info = test::avx2();
  const auto complete = [&](Case& config) { complete_stitch(config, info); };
  const std::vector<Case> cases = expand(stitch_sweep("quick", info), stitch_axes(), complete);
  const auto with = [&](const std::string& fastest) {
    return test::taken(test::made_up_answer(
        stitch_answer(), cases,
        [&](const Case& config) { return config.key({"form", "grain"}) == fastest ? 1e-3 : 2e-3; }, complete));
  };
  EXPECT_TRUE(with("form=noinline grain=row").contains("noinline row"));
  EXPECT_TRUE(with("form=inline grain=element").contains("inline element"));
}

}  // namespace
}  // namespace attn
