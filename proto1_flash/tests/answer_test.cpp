// The answer that a run prints at its end, mostly for made-up results.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "common/cases/axes.h"
#include "common/testing/answers.h"
#include "common/testing/devices.h"
#include "proto1_flash/claims.h"
#include "proto1_flash/sweep.h"

namespace attn {
namespace {

TEST(FlashAnswerTest, NamesClaimsOfTheExperiment) {
  const std::vector<Claim> claims = test::both(flash_claims(test::avx2()), flash_claims(test::hopper()));
  EXPECT_EQ(test::unknown_claims(flash_answer(), claims), std::vector<std::string>());
}

TEST(FlashAnswerTest, TheTileFollowsFromTheDevice) {
  const DeviceInfo info = test::avx2();
  const auto complete = [&](Case& config) { complete_flash(config, info); };
  const std::vector<Case> cases = expand(flash_sweep("quick", info), flash_axes(), complete);
  const auto device = [](int64_t best) {  // the device's time grows with the distance of block_r from `best`
    return [best](const Case& config) {
      if (config.text("variant") != "tuned") return 1.0;
      const double away =
          std::abs(std::log2(static_cast<double>(config.integer("block_r")) / static_cast<double>(best)));
      return 1e-3 * (1 + 0.1 * away + 1e-4 * static_cast<double>(config.integer("block_c")));
    };
  };
  const Json wide = test::made_up_answer(flash_answer(), cases, device(128), complete);
  EXPECT_EQ(wide["choices"].size(), 3u) << "a line for each head_dim";
  EXPECT_EQ(test::taken(wide), std::set<std::string>{"128x64"});
  const Json narrow = test::made_up_answer(flash_answer(), cases, device(32), complete);
  EXPECT_EQ(test::taken(narrow), std::set<std::string>{"32x64"});
  EXPECT_EQ(narrow["choices"][0]["default"]["option"], "256x128");
  EXPECT_NEAR(narrow["choices"][0]["default"]["ratio"].get<double>(), 1.3, 0.02);
}

}  // namespace
}  // namespace attn
