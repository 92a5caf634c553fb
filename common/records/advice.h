// What the verdicts on a claim advise: the words, the cases for which they hold, and the range of the figures. The
// answer at a run's end, kb advice and the pages of the devices have these lines.
#pragma once

#include <string>
#include <vector>

#include "common/records/claim.h"

namespace attn {

/// A case of a claim, as a run or the records judge it.
struct Judged {
  std::string subject;
  State state = State::inconclusive;
  double low = 0, high = 0;
  bool contradicted = false;  // the run and the records have opposite verdicts
  std::string id = {};        // of the finding
};
/// Judges by a claim that kb pool printed. A claim that may not advise counts as undecided. Throws Json::exception for
/// a claim without its fields.
Judged judged(const Json& pooled);
State state_of(const std::string& name);

/// The lines about claims, each an array of objects with "hypothesis", "metric", "cases" (the number of cases), "of"
/// (the number of all cases of the claim), "low", "high" and "unit" (of the figures).
struct ClaimLines {
  Json advised =
      Json::array();  // also "advice", "state", "where" (the cases for which it holds) and "id" (a finding's)
  Json undecided = Json::array();  // also "contradicted" (the number of such cases)
};
/// Adds a line for each verdict that the claim's cases have. `advice` has the words, with the threshold filled in. A
/// verdict without words has a line only with `without_words`: it then repeats the hypothesis.
void add_lines(ClaimLines& lines, const Hypothesis& hypothesis, const Advice& advice, const std::vector<Judged>& cases,
               bool without_words = false);

/// For example "0.52x to 0.55x", or "1.70 to 37.4 ns".
std::string range_text(const Json& line);
/// For example "Say that the mask is causal, in both cases: 0.52x to 0.55x [causal]".
std::string advice_text(const Json& line);

/// Returns the topic of a claim, such as "Tile". The topic of a claim that no topic names is its experiment.
std::string topic_of(const std::string& experiment, const std::string& hypothesis);
/// All topics, in the order in which pages show them.
const std::vector<std::string>& topics();

}  // namespace attn
