#include "findings/kb/first_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/records/tests/support.h"
#include "common/records/tests/verdict_cases.h"

namespace attn::kb {
namespace {

FirstFigures figures(const Estimate& estimate, double aa_floor = 0, double cv = 0.01) {
  return {.estimate = estimate, .aa_floor = aa_floor, .cv = cv};
}

TEST(FirstRules, TruthTable) {
  std::vector<VerdictCase> rows = verdict_cases();
  // A difference of two ratios may have a threshold near 0. The noise floor is then 0.02, as at a threshold of 1.
  rows.push_back({"<", 0.03, {0.02, 0.019, 0.021}, 0.02, State::inconclusive});
  for (const VerdictCase& row : rows) {
    const Verdict verdict = first_judge(hypothesis(row.op, row.threshold), figures(row.estimate, row.floor));
    EXPECT_EQ(name(verdict.state), name(row.state))
        << row.estimate.value << " " << row.op << " " << row.threshold << " floor " << row.floor;
    EXPECT_FALSE(verdict.reason.empty());
  }
}

TEST(FirstRules, SaysWhy) {
  EXPECT_EQ(first_judge(hypothesis("<", 1), figures({0.9, 0.88, 0.92})).reason, "0.9 [0.88, 0.92] is < 1");
  EXPECT_EQ(first_judge(hypothesis("<", 1), figures({1.1, 1.08, 1.12})).reason, "1.1 [1.08, 1.12] is not < 1");
  EXPECT_EQ(first_judge(hypothesis("<", 1), figures({1, 0.9, 1.1})).reason, "the interval of 1 [0.9, 1.1] crosses 1");
  EXPECT_EQ(first_judge(hypothesis("<", 1), figures({0.99, 0.98, 0.995}, 0.02)).reason,
            "0.99 [0.98, 0.995] is closer to 1 than the noise floor of 0.02");
  EXPECT_THROW(first_judge(hypothesis("==", 1), figures({1, 1, 1})), std::invalid_argument);
}

TEST(FirstRules, AWrongResultProvesNothing) {
  FirstFigures c = figures({0.5, 0.49, 0.51});
  c.correct = false;
  EXPECT_EQ(first_judge(hypothesis("<", 1), c).state, State::inconclusive);
}

TEST(FirstRules, ConfidenceTruthTable) {
  const FirstFigures clean = figures({0.9, 0.88, 0.92}, 0, 0.0499), shaky = figures({0.9, 0.88, 0.92}, 0, 0.05);
  FirstFigures wrong = clean;
  wrong.correct = false;
  for (const State state : {State::supported, State::refuted}) {
    EXPECT_EQ(first_confidence({state, ""}, clean, false), 0.8);
    EXPECT_EQ(first_confidence({state, ""}, clean, true), 0.95);
    EXPECT_EQ(first_confidence({state, ""}, shaky, false), 0.6);
    EXPECT_EQ(first_confidence({state, ""}, shaky, true), 0.6);
    EXPECT_EQ(first_confidence({state, ""}, wrong, true), 0);
  }
  EXPECT_EQ(first_confidence({State::inconclusive, ""}, clean, true), 0.5);
  EXPECT_EQ(first_confidence({State::inconclusive, ""}, shaky, false), 0.5);
  EXPECT_EQ(first_confidence({State::inconclusive, ""}, wrong, false), 0);
  EXPECT_EQ(first_confidence({State::supported, ""}, figures({}, 0, std::nan("")), true), 0.6);
}

TEST(FirstRules, ClaimKeyHasNoMeasuredFigure) {
  EXPECT_EQ(first_claim_key("proto1_flash", "bc80", "A CPU, 2 units", "head_dim=64"),
            "proto1_flash/bc80/A CPU, 2 units/head_dim=64");
  EXPECT_EQ(first_claim_key("proto1_flash", "bc80", "A CPU", ""), "proto1_flash/bc80/A CPU");
}

}  // namespace
}  // namespace attn::kb
