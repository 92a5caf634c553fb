// Tests the answer that a run prints at its end: its claims, and its choice on made-up results.
#include <gtest/gtest.h>

#include "common/testing/answers.h"
#include "common/testing/devices.h"
#include "proto5_codegen/claims.h"
#include "proto5_codegen/sweep.h"

namespace attn {
namespace {

TEST(CodegenAnswerTest, NamesClaimsOfTheExperiment) {
  const std::vector<Claim> claims = codegen_claims();
  EXPECT_EQ(test::unknown_claims(codegen_answer(), claims), std::vector<std::string>());
}

TEST(CodegenAnswerTest, TheFastestGeneratorIsTheChoice) {
  const DeviceInfo info = test::avx2();
  const auto complete = [&](Case& config) { complete_codegen(config, info); };
  const std::vector<Case> cases = expand(codegen_sweep("quick", info), codegen_axes(), complete);
  const auto with = [&](const std::string& fastest) {
    return test::taken(test::made_up_answer(
        codegen_answer(), cases, [&](const Case& config) { return config.key({"generator"}) == fastest ? 1e-3 : 2e-3; },
        complete));
  };
  EXPECT_TRUE(with("generator=hand").contains("hand"));
  EXPECT_TRUE(with("generator=compiler").contains("compiler"));
}

}  // namespace
}  // namespace attn
