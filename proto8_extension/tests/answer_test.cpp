// Tests the claims that the answer at the end of a run names.
#include <gtest/gtest.h>

#include "common/testing/answers.h"
#include "common/testing/devices.h"
#include "proto8_extension/claims.h"
#include "proto8_extension/sweep.h"

namespace attn {
namespace {

TEST(ExtensionAnswerTest, NamesClaimsOfTheExperiment) {
  const std::vector<Claim> claims = extension_claims();
  EXPECT_EQ(test::unknown_claims(extension_answer(), claims), std::vector<std::string>());
}

}  // namespace
}  // namespace attn
