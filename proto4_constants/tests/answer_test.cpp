// Tests the claims that the answer at the end of a run names.
#include <gtest/gtest.h>

#include "common/testing/answers.h"
#include "common/testing/devices.h"
#include "proto4_constants/claims.h"
#include "proto4_constants/sweep.h"

namespace attn {
namespace {

TEST(ConstantsAnswerTest, NamesClaimsOfTheExperiment) {
  const std::vector<Claim> claims = constants_claims();
  EXPECT_EQ(test::unknown_claims(constants_answer(), claims), std::vector<std::string>());
}

}  // namespace
}  // namespace attn
