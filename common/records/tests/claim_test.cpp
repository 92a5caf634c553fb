#include "common/records/claim.h"

#include <gtest/gtest.h>

#include <cmath>

namespace attn {
namespace {

Hypothesis hypothesis(const std::string& op, double threshold) {
  return {.id = "bc80", .text = "t", .metric = "m", .op = op, .threshold = threshold, .origin = "o"};
}

Conclusion conclusion(Estimate estimate, double aa_floor = 0, double cv = 0.01) {
  Conclusion c;
  c.hypothesis = "bc80";
  c.estimate = estimate;
  c.aa_floor = aa_floor;
  c.cv = cv;
  return c;
}

TEST(Judge, TruthTable) {
  struct Row {
    const char* op;
    double threshold;
    Estimate estimate;
    double aa_floor;
    State state;
  };
  constexpr State yes = State::supported, no = State::refuted, open = State::inconclusive;
  const Row rows[]{
      // Which side of the threshold.
      {"<", 1, {0.90, 0.88, 0.92}, 0, yes},
      {"<", 1, {1.10, 1.08, 1.12}, 0, no},
      {">", 1, {0.90, 0.88, 0.92}, 0, no},
      {">", 1, {1.10, 1.08, 1.12}, 0, yes},
      {"<=", 1, {0.90, 0.88, 0.92}, 0, yes},
      {">=", 1, {1.10, 1.08, 1.12}, 0, yes},
      // The interval crosses.
      {"<", 1, {0.99, 0.97, 1.01}, 0, open},
      {">=", 1, {1.20, 0.99, 1.40}, 0, open},
      // An end on the threshold: it counts as the operator says.
      {"<", 1, {0.95, 0.90, 1.00}, 0, open},
      {"<=", 1, {0.95, 0.90, 1.00}, 0, yes},
      {">", 1, {1.05, 1.00, 1.10}, 0, open},
      {">=", 1, {1.05, 1.00, 1.10}, 0, yes},
      {"<", 1, {1.05, 1.00, 1.10}, 0, no},
      {">", 1, {0.95, 0.90, 1.00}, 0, no},
      // A clear interval within the noise floor of the threshold.
      {"<", 1, {0.985, 0.98, 0.99}, 0.02, open},
      {"<", 1, {0.975, 0.97, 0.98}, 0.02, yes},
      {">", 1, {1.015, 1.01, 1.02}, 0.02, open},
      // No effect at all refutes a large one: the distance to the threshold matters, not to 1.
      {">=", 1.1, {1.001, 0.998, 1.004}, 0.02, no},
      {">=", 1.1, {1.115, 1.11, 1.12}, 0.02, open},
      // The floor is relative: 0.02 at a ratio of 1 is 0.04 at a ratio of 2.
      {">", 2, {2.03, 2.02, 2.04}, 0.02, open},
      {">", 2, {2.05, 2.04, 2.06}, 0.02, yes},
      // A difference of ratios has its threshold near 0, and still the noise of a ratio near 1.
      {"<", 0.03, {0.02, 0.019, 0.021}, 0.02, open},
      // No interval, no verdict.
      {"<", 1, {0.9, std::nan(""), 0.92}, 0, open},
      {"<", 1, {0.9, std::nan(""), std::nan("")}, 0, open},
  };
  for (const Row& row : rows) {
    const Verdict verdict = judge(hypothesis(row.op, row.threshold), conclusion(row.estimate, row.aa_floor));
    EXPECT_EQ(name(verdict.state), name(row.state))
        << row.estimate.value << " " << row.op << " " << row.threshold << " floor " << row.aa_floor;
    EXPECT_FALSE(verdict.reason.empty());
  }
}

TEST(Judge, SaysWhy) {
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({0.9, 0.88, 0.92})).reason, "0.9 [0.88, 0.92] is < 1");
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({1.1, 1.08, 1.12})).reason, "1.1 [1.08, 1.12] is not < 1");
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({1, 0.9, 1.1})).reason, "the interval of 1 [0.9, 1.1] crosses 1");
  EXPECT_EQ(judge(hypothesis("<", 1), conclusion({0.99, 0.98, 0.995}, 0.02)).reason,
            "0.99 [0.98, 0.995] is closer to 1 than the noise floor of 0.02");
  EXPECT_THROW(judge(hypothesis("==", 1), conclusion({1, 1, 1})), std::invalid_argument);
}

TEST(Judge, AWrongResultProvesNothing) {
  Conclusion c = conclusion({0.5, 0.49, 0.51});
  c.correct = false;
  EXPECT_EQ(judge(hypothesis("<", 1), c).state, State::inconclusive);
}

TEST(Confidence, TruthTable) {
  const Conclusion clean = conclusion({0.9, 0.88, 0.92}, 0, 0.0499), shaky = conclusion({0.9, 0.88, 0.92}, 0, 0.05);
  Conclusion wrong = clean;
  wrong.correct = false;
  for (const State state : {State::supported, State::refuted}) {
    EXPECT_EQ(confidence({state, ""}, clean, false), 0.8);
    EXPECT_EQ(confidence({state, ""}, clean, true), 0.95);
    EXPECT_EQ(confidence({state, ""}, shaky, false), 0.6);
    EXPECT_EQ(confidence({state, ""}, shaky, true), 0.6);
    EXPECT_EQ(confidence({state, ""}, wrong, true), 0);
  }
  EXPECT_EQ(confidence({State::inconclusive, ""}, clean, true), 0.5);
  EXPECT_EQ(confidence({State::inconclusive, ""}, shaky, false), 0.5);
  EXPECT_EQ(confidence({State::inconclusive, ""}, wrong, false), 0);
  EXPECT_EQ(confidence({State::supported, ""}, conclusion({}, 0, std::nan("")), true), 0.6);
}

TEST(Comparison, FloorIsTheFarEndOfTheAaInterval) {
  Comparison comparison;
  comparison.aa = {1.0, 0.97, 1.01};
  EXPECT_NEAR(comparison.aa_floor(), 0.03, 1e-12);
  comparison.aa = {1.02, 1.01, 1.04};
  EXPECT_NEAR(comparison.aa_floor(), 0.04, 1e-12);
}

}  // namespace
}  // namespace attn
