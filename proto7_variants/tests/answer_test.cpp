// Tests the claims that the answer at the end of a run names.
#include <gtest/gtest.h>

#include "common/testing/answers.h"
#include "common/testing/devices.h"
#include "proto7_variants/claims.h"
#include "proto7_variants/sweep.h"

namespace attn {
namespace {

TEST(VariantsAnswerTest, NamesClaimsOfTheExperiment) {
  const std::vector<Claim> claims = variants_claims();
  EXPECT_EQ(test::unknown_claims(variants_answer(), claims), std::vector<std::string>());
}

}  // namespace
}  // namespace attn
