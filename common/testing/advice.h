// Checks the advice of claims against a hand-written table of the words that each advice must have.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/records/finding.h"

namespace attn::test {

/// Most claims compare two ways to do the same work. Their figure is the time of the second way divided by the time of
/// the first, so a figure below 1 speaks for the second way. A Choice is the way that an advice chooses.
enum class Choice { none, first, second };

/// What an advice must say: a part of its words, and the way that it chooses. `none`: the advice states what to expect,
/// and chooses no way.
struct AdviceSide {
  std::string words;
  Choice chooses = Choice::none;
};

/// A row of the table: what the advice of a claim must say where the figure lies below and above the threshold. A row
/// does not name the claim's operator or verdict, so the checks find a wrong operator and exchanged advices.
struct AdviceRow {
  std::string id;
  AdviceSide below, above;
  /// The second way has merits apart from its time, such as a cache of 8 bits. An advice may choose it even where it
  /// takes somewhat longer.
  bool merits = false;
};

/// Returns the finding of a claim whose figure is exactly this value.
inline Json finding_with(const Claim& claim, double value) {
  Conclusion conclusion;
  conclusion.hypothesis = claim.hypothesis.id;
  conclusion.advice = claim.advice;
  conclusion.exact = true;
  conclusion.parts = {{.value = value}};
  Pooled& estimate = conclusion.estimate;
  estimate.value = estimate.ci_lo = estimate.ci_hi = estimate.next_lo = estimate.next_hi = value;
  return make_finding("test", "test", claim.hypothesis, conclusion, "r");
}

/// For each claim, makes a finding below the threshold and a finding above it, and compares their advice with the
/// table, which must have a row for each claim that advises. An advice that chooses a way must be right for all figures
/// on its side of the threshold (except with AdviceRow::merits). For example, if the threshold is 0.6, the advice above
/// it must not choose the first way, because a figure of 0.8 still speaks for the second way.
inline void expect_advice(const std::vector<Claim>& claims, const std::vector<AdviceRow>& table) {
  size_t advising = 0;
  for (const Claim& claim : claims) {
    const Hypothesis& hypothesis = claim.hypothesis;
    const auto row = std::ranges::find(table, hypothesis.id, &AdviceRow::id);
    if (claim.advice.holds.empty() && claim.advice.refuted.empty()) {
      EXPECT_EQ(row, table.end()) << hypothesis.id << " has a row, but no advice";
      continue;
    }
    ++advising;
    if (row == table.end()) {
      ADD_FAILURE() << hypothesis.id << " has no row in the table of advice";
      continue;
    }
    const double threshold = hypothesis.threshold, step = threshold == 0 ? 1 : threshold / 2;
    for (const bool above : {false, true}) {
      const std::string where = fmt::format("{}, {} the threshold", hypothesis.id, above ? "above" : "below");
      const AdviceSide& side = above ? row->above : row->below;
      const Json finding = finding_with(claim, threshold + (above ? step : -step));
      const std::string advice = finding.at("data").at("advice");
      EXPECT_NE(advice.find(side.words), std::string::npos) << where << ": " << advice;
      EXPECT_EQ(advice.find('{'), std::string::npos) << where << ": " << advice;
      if (side.chooses == Choice::none) continue;
      EXPECT_EQ(side.chooses, above ? Choice::first : Choice::second)
          << where << ": the figure speaks for the other way";
      const bool all_of_the_side = above ? threshold >= 1 : threshold <= 1 || row->merits;
      EXPECT_TRUE(all_of_the_side) << where << ": a figure between the threshold and 1 speaks for the other way";
    }
    EXPECT_NE(claim.advice.holds, claim.advice.refuted) << hypothesis.id;
  }
  EXPECT_EQ(advising, table.size()) << "the table must have one row for each claim that advises";
}

}  // namespace attn::test
