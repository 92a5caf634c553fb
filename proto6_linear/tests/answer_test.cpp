// Tests the answer that a run prints at its end: its claims, and its choice on made-up results.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "common/testing/answers.h"
#include "common/testing/devices.h"
#include "proto6_linear/claims.h"
#include "proto6_linear/sweep.h"

namespace attn {
namespace {

TEST(LinearAnswerTest, NamesClaimsOfTheExperiment) {
  const std::vector<Claim> claims = test::both(linear_claims(test::avx2()), linear_claims(test::hopper()));
  EXPECT_EQ(test::unknown_claims(linear_answer(), claims), std::vector<std::string>());
}

TEST(LinearAnswerTest, TheFastestFormIsTheChoice) {
  const DeviceInfo info = test::avx2();
  const auto complete = [&](Case& config) { complete_linear(config, info); };
  const std::vector<Case> cases = expand(linear_sweep("quick", info), linear_axes(), complete);
  const auto with = [&](const std::string& fastest) {
    return test::taken(test::made_up_answer(
        linear_answer(), cases,
        [&](const Case& config) { return config.key({"variant", "scan"}) == fastest ? 1e-3 : 2e-3; }, complete));
  };
  const auto any = [](const std::set<std::string>& options, const std::string& begin) {
    return std::ranges::any_of(options, [&](const std::string& option) { return option.starts_with(begin); });
  };
  EXPECT_TRUE(any(with("variant=fused scan=none"), "fused "));
  EXPECT_FALSE(any(with("variant=fused scan=none"), "phases "));
  EXPECT_TRUE(any(with("variant=phases scan=passes"), "phases passes "));
}

TEST(LinearAnswerTest, AFeatureMapOfTheUserHasAChoice) {
  const DeviceInfo info = test::avx2();
  const auto complete = [&](Case& config) {
    config.set("feature", std::string("file-6527d776717c"));
    complete_linear(config, info);
  };
  const std::vector<Case> cases = expand(feature_sweep("quick", info), linear_axes(), complete);
  const Json answer = test::made_up_answer(
      linear_answer(), cases, [](const Case& config) { return config.text("variant") == "fused" ? 1e-3 : 2e-3; },
      complete);
  EXPECT_FALSE(answer["choices"].empty());
  for (const std::string& option : test::taken(answer)) EXPECT_TRUE(option.starts_with("fused ")) << option;
}

}  // namespace
}  // namespace attn
