// Tests that the claims draw the right conclusions from made-up results, and give the right advice.
#include "proto8_extension/claims.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/testing/advice.h"

namespace attn {
namespace {

Measurement result(const std::string& path, double seconds, double allocations) {
  Measurement made;
  made.config.set("task", std::string("call"));
  made.config.set("path", path);
  made.config.set("op", std::string("flash"));
  made.config.set("from", std::string("none"));
  made.config.set("dtype", std::string("f32"));
  for (const auto& [axis, value] : {std::pair{"q_heads", 1}, {"q_len", 16}, {"head_dim", 64}})
    made.config.set(axis, int64_t{value});
  made.id = path;
  made.status = "ok";
  made.check = Check{};
  made.time = {Timing{Scope::host, 10, 10, seconds, seconds, seconds, 0.01, seconds, "ci"}};
  made.values = {{"allocations", allocations}};
  return made;
}

TEST(ExtensionFindingsTest, AnOverheadIsTheDifferenceOfTwoTimesInMicroseconds) {
  const std::vector<Measurement> results = {result("direct", 4e-6, 2), result("c", 4.5e-6, 3)};
  const std::vector<Claim> claims = extension_claims();
  EXPECT_GE(claims.size(), 6u);
  const std::vector<Duel> wanted = duels(claims, results);
  ASSERT_EQ(std::ranges::count_if(wanted, [](const Duel& duel) { return duel.hypothesis == "c_overhead"; }), 1);
  Comparison pair;
  pair.hypothesis = "c_overhead";
  pair.baseline = results[0].config;
  pair.contender = results[1].config;
  pair.ratio = {1.125, 1.1, 1.15};
  pair.aa = {1, 1, 1};
  pair.time = {results[0].time.front(), results[1].time.front()};
  bool overhead = false, allocated = false;
  for (const Conclusion& conclusion : conclude(claims, results, {pair})) {
    if (conclusion.hypothesis == "c_overhead") {
      overhead = true;
      EXPECT_NEAR(conclusion.estimate.value, 0.5, 1e-9);
      ASSERT_EQ(conclusion.parts.size(), 1u);
      EXPECT_NEAR(conclusion.parts[0].error, (0.6 - 0.4) / 2 / 1.96, 1e-9);
      EXPECT_NEAR(double{conclusion.values["contender_us"]}, 4.5, 1e-9);
    }
    if (conclusion.hypothesis == "allocations") {
      allocated = true;
      EXPECT_EQ(conclusion.estimate.value, 1);
      EXPECT_TRUE(conclusion.exact);
    }
  }
  EXPECT_TRUE(overhead && allocated);
}

// The table has two texts for each claim: the advice if the claim's figure is small, and the advice if it is large.
TEST(ExtensionFindingsTest, AdviceFitsFiguresBelowAndAboveTheThreshold) {
  using test::Choice;
  test::expect_advice(
      extension_claims(),
      {
          {"c_overhead", {"Call attn.h for every launch"}, {"Batch launches"}},
          {"dlpack_overhead", {"Describe tensors anew"}, {"Keep the descriptions"}},
          {"concept_overhead", {"Give backends attention by WithAttention"}, {"Call the engine directly"}},
          {"torch_overhead", {"Call PyTorch's operator as it is"}, {"in a graph"}},
          {"copies_overhead", {"to add less than 2 us"}, {"copy nothing"}},
          {"allocations", {"Call attn.h from code that must not allocate"}, {"Do not call attn.h from code"}},
          {"break_even",
           {"leave the time of attn.h out of account", Choice::second},
           {"capture calls of attn.h in a graph"},
           true},
          {"first_call_archive", {"Ship an archive"}, {"Make the first call while nobody waits"}},
          {"first_call_disk", {"Keep the cache on disk"}, {"Make the first call while nobody waits"}},
          {"first_call_compiler", {"Compile when a shape first comes"}, {"Compile ahead"}},
      });
}

}  // namespace
}  // namespace attn
