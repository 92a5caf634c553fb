#include "findings/kb/first_rules.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attn::kb {
namespace {

Hypothesis hypothesis(const std::string& op, double threshold) {
  return {"id", "text", "metric", op, threshold, "origin"};
}

FirstFigures figures(const Estimate& estimate, double aa_floor = 0, double cv = 0.01) {
  return {.estimate = estimate, .aa_floor = aa_floor, .cv = cv};
}

TEST(FirstRules, TruthTable) {
  struct Row {
    const char* op;
    double threshold;
    Estimate estimate;
    double aa_floor;
    State state;
  };
  constexpr State yes = State::supported, no = State::refuted, open = State::inconclusive;
  const Row rows[]{
      // The interval lies on one side of the threshold.
      {"<", 1, {0.90, 0.88, 0.92}, 0, yes},
      {"<", 1, {1.10, 1.08, 1.12}, 0, no},
      {">", 1, {0.90, 0.88, 0.92}, 0, no},
      {">", 1, {1.10, 1.08, 1.12}, 0, yes},
      {"<=", 1, {0.90, 0.88, 0.92}, 0, yes},
      {">=", 1, {1.10, 1.08, 1.12}, 0, yes},
      // The interval crosses the threshold.
      {"<", 1, {0.99, 0.97, 1.01}, 0, open},
      {">=", 1, {1.20, 0.99, 1.40}, 0, open},
      // An end of the interval is the threshold: the operator decides.
      {"<", 1, {0.95, 0.90, 1.00}, 0, open},
      {"<=", 1, {0.95, 0.90, 1.00}, 0, yes},
      {">", 1, {1.05, 1.00, 1.10}, 0, open},
      {">=", 1, {1.05, 1.00, 1.10}, 0, yes},
      {"<", 1, {1.05, 1.00, 1.10}, 0, no},
      {">", 1, {0.95, 0.90, 1.00}, 0, no},
      // Even with a narrow interval, the verdict is open if the ratio is closer to the threshold than the noise floor.
      {"<", 1, {0.985, 0.98, 0.99}, 0.02, open},
      {"<", 1, {0.975, 0.97, 0.98}, 0.02, yes},
      {">", 1, {1.015, 1.01, 1.02}, 0.02, open},
      // A measured ratio near 1 refutes the claim of a large effect: the distance to the threshold counts, not the
      // distance to 1.
      {">=", 1.1, {1.001, 0.998, 1.004}, 0.02, no},
      {">=", 1.1, {1.115, 1.11, 1.12}, 0.02, open},
      // The floor is relative: 0.02 at a ratio of 1 is 0.04 at a ratio of 2.
      {">", 2, {2.03, 2.02, 2.04}, 0.02, open},
      {">", 2, {2.05, 2.04, 2.06}, 0.02, yes},
      // The figure may be a difference of two ratios. The threshold is then near 0, but the noise is as large as the
      // noise of a ratio near 1. So the floor does not shrink with the threshold.
      {"<", 0.03, {0.02, 0.019, 0.021}, 0.02, open},
      // Without an interval the verdict is inconclusive.
      {"<", 1, {0.9, std::nan(""), 0.92}, 0, open},
      {"<", 1, {0.9, std::nan(""), std::nan("")}, 0, open},
  };
  for (const Row& row : rows) {
    const Verdict verdict = first_judge(hypothesis(row.op, row.threshold), figures(row.estimate, row.aa_floor));
    EXPECT_EQ(name(verdict.state), name(row.state))
        << row.estimate.value << " " << row.op << " " << row.threshold << " floor " << row.aa_floor;
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

TEST(FirstRules, ClaimKeyHasNoFigures) {
  EXPECT_EQ(first_claim_key("proto1_flash", "bc80", "A CPU, 2 units", "head_dim=64"),
            "proto1_flash/bc80/A CPU, 2 units/head_dim=64");
  EXPECT_EQ(first_claim_key("proto1_flash", "bc80", "A CPU", ""), "proto1_flash/bc80/A CPU");
}

}  // namespace
}  // namespace attn::kb
