// Tests the answer that a run prints at its end. The results are made up.
#include <gtest/gtest.h>

#include "common/testing/answers.h"
#include "common/testing/devices.h"
#include "proto3_paged/claims.h"
#include "proto3_paged/sweep.h"

namespace attn {
namespace {

TEST(PagedAnswerTest, NamesClaimsOfTheExperiment) {
  const std::vector<Claim> claims = test::both(paged_claims(test::avx2()), paged_claims(test::hopper()));
  EXPECT_EQ(test::unknown_claims(paged_answer(), claims), std::vector<std::string>());
}

TEST(PagedAnswerTest, TheFastestPageSizeIsChosen) {
  const DeviceInfo info = test::avx2();
  const auto complete = [&](Case& config) { complete_paged(config, info); };
  const std::vector<Case> cases = expand(paged_sweep("quick", info), paged_axes(), complete);
  const auto with = [&](const std::string& fastest) {
    return test::taken(test::made_up_answer(
        paged_answer(), cases, [&](const Case& config) { return config.key({"page_size"}) == fastest ? 1e-3 : 2e-3; },
        complete));
  };
  EXPECT_TRUE(with("page_size=16").contains("16"));
  EXPECT_TRUE(with("page_size=128").contains("128"));
}

}  // namespace
}  // namespace attn
