#include "findings/kb/advice.h"

#include <fmt/format.h>

#include "findings/kb/tests/support.h"

namespace attn::kb {
namespace {

Json advising(Json record, const std::string& advice, const std::string& subject = "head_dim=64 dtype=bf16") {
  record["data"]["advice"] = advice;
  record["data"]["subject"] = subject;
  if (subject != "head_dim=64 dtype=bf16") record["claim_key"] = record["claim_key"].get<std::string>() + subject;
  return with_id(record);
}

TEST(Discoveries, AreTheLargestRankBelowItsLimit) {
  using Kept = std::vector<bool>;
  EXPECT_EQ(discoveries({}), Kept{});
  EXPECT_EQ(discoveries({0.04}), Kept{true});
  EXPECT_EQ(discoveries({0.06}), Kept{false});
  // The limits of four ranks: 0.0125, 0.025, 0.0375, 0.05.
  EXPECT_EQ(discoveries({0.2, 0.036, 0.001, 0.03}), (Kept{false, true, true, true}))
      << "0.03 is above the limit of its rank, but rank 3 passes";
  EXPECT_EQ(discoveries({0.2, 0.039, 0.001, 0.03}), (Kept{false, false, true, false}));
  EXPECT_EQ(discoveries({0.05, 0.05, 0.05, 0.05}), (Kept{true, true, true, true}));
  EXPECT_EQ(discoveries({0.2, 0.2}, 0.3), (Kept{true, true}));
}

TEST(WrongVerdict, FallsWithTheDistanceToTheThreshold) {
  const auto wrong = [](const Json& record) { return wrong_verdict(records_of({record}).front()); };
  EXPECT_LT(wrong(second_finding({1.6, 1.61, 1.6})), 0.01);
  EXPECT_LT(wrong(second_finding({1.6, 1.61, 1.6})), wrong(second_finding({1.3, 1.31, 1.3})));
  EXPECT_LT(wrong(second_finding({1.3, 1.3, 1.3, 1.3, 1.3})), wrong(second_finding({1.3})));
  EXPECT_LT(wrong(finding(1.9)), wrong(finding(1.3)));
  EXPECT_GT(wrong(finding(1.3)), 0);
  EXPECT_EQ(wrong(exact_finding(2)), 0);
}

TEST(ExpectedWrong, SumsTheDoubtsOfDecidedFindings) {
  const auto records =
      records_of({second_finding({1.6, 1.6}), finding(1.1), finding(1.25), exact_finding(2), header()});
  EXPECT_NEAR(expected_wrong(records), 0.2 + 0.2, 1e-9) << "the inconclusive and the exact finding add nothing";
}

TEST(Advices, OfTheLatestFindingsThatPass) {
  const Json sure = advising(second_finding({1.9, 1.9, 1.9, 1.9}), "Measure.");
  Advices result = advices(records_of({advising(finding(1.1), "Old."), header(), sure}));
  ASSERT_EQ(result.given.size(), 1u) << "the latest finding of the claim, of either schema";
  EXPECT_EQ(result.given[0].text, "Measure.");
  EXPECT_NEAR(result.expected_wrong, 0.2, 1e-9);
  EXPECT_EQ(result.withheld, 0);
  Json near = advising(second_finding({1.27}, "r1", "Another CPU"), "Beware.", "head_dim=128");
  near["data"]["verdict"]["state"] = "supported";
  near = with_id(near);
  result = advices(records_of({header(), sure, near, advising(finding(1.25, "r1", "Third CPU"), "Never.")}));
  ASSERT_EQ(result.given.size(), 1u);
  EXPECT_EQ(result.given[0].text, "Measure.");
  EXPECT_EQ(result.withheld, 1) << "an inconclusive finding has no advice to withhold";
}

}  // namespace
}  // namespace attn::kb
