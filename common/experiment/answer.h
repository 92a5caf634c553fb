// The answer of a run: which option of each choice to take, what the claims advise, and what is undecided, by this run
// and by the records of the source tree.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/claim.h"

namespace attn {

/// A choice that a user has to make, for example which tile a kernel uses. An option is a combination of values of the
/// choice's axes; a shape is a combination of values of the other axes. Options are compared in each shape.
struct Choice {
  std::string what;                             // "tile (block_r x block_c)"
  std::vector<std::string> axes;                // an option's name has the values of these axes, without "none"
  std::string between = " ";                    // stands between the values: "x" for 256x128
  std::vector<std::string> by = {};             // the answer has a line for each combination of values of these axes
  std::function<bool(const Case&)> takes = {};  // which cases take part; empty: all
  /// An option is as good as the fastest option if its time is at most this multiple of the fastest option's time. 0:
  /// an option is as good if the confidence intervals of the two times overlap.
  double within = 0;
  size_t at_least = 3;  // a shape with fewer measured options is left out
};

/// The content of an experiment's answer. If `choices` and `claims` are both empty, the answer has all claims. If a run
/// decides nothing about `choices` and `claims`, the answer has all claims that the run judged.
struct AnswerSpec {
  std::vector<Choice> choices = {};
  /// Ids of the hypotheses whose advice is for users, in the order of the answer. Ids without a claim of the device are
  /// left out.
  std::vector<std::string> claims = {};
  /// The printed table compares cases that differ only in these axes. Empty: the experiment's compared axes.
  std::vector<std::string> alternatives = {};
};

/// The fastest of several options, and the options that are as good. scripts/pages/tuning.py has the same rule, and
/// scripts/tests/picks.json has cases on which both must agree.
struct Picked {
  const Measurement* best = nullptr;
  Results as_good = {};  // without `best`, in the order of the results
};
Picked pick_option(const Results& options, double within);

/// What the records say about a device.
struct Known {
  std::vector<Json> claims = {};  // the lines of kb pool about the device and the experiment
  Json tuning = nullptr;          // the content of the device's file of tuning
};
/// Reads the claims from a file that kb pool wrote. A missing file counts as empty.
Known known_of(const std::string& pooled_claims, const std::string& experiment, const std::string& device);

/// All that an answer follows from.
struct AnswerInput {
  const AnswerSpec& spec;
  const std::vector<Claim>& claims;
  std::string device;  // as in findings
  const std::vector<Measurement>& results;
  const std::vector<Comparison>& comparisons;
  const std::vector<Json>& findings;  // of this run
  Known known = {};
  bool whole_sweep = true;  // recorded cases of the claims count too, if this run did not judge them
  /// Sets missing axes of a case to their defaults. Empty if there are no defaults.
  std::function<void(Case&)> complete = {};
};

/// Returns the answer: an object with "device", "records" (the number of recorded claims), "choices", "claims",
/// "undecided" (claims) and "counts" (of the results, by status).
///
/// A choice has, among others, the members "where" (the cases), "of" (the number of options), "take" (the option to
/// take), "as_good" (the other options that are as good as the fastest), "avoid" (the slower options, with their
/// ratios), "unclear" (options), "default" if there is one, and "undecided" (the reason why there is no option to
/// take). An option is unclear if it is not as good as the fastest option (Choice::within), but the confidence
/// intervals of the two options' times overlap. A ratio comes from the comparison of the option with the fastest
/// option, or else from their medians. For several shapes the ratio is the largest of the shapes' ratios. The option to
/// take is as good as the fastest in all of these shapes, and in the records of these shapes if there are any.
///
/// A member of "claims" has the advice, the range of the claim's figures, and the cases for which the advice holds. If
/// this run and the records contradict each other about a case of the claim, neither verdict counts.
Json answer(const AnswerInput& input);

/// The answer as a text of about `most_lines` lines of at most `width` characters. A longer answer is shortened: fewer
/// undecided claims, then only the names of the last choices and claims.
std::string answer_text(const Json& answer, size_t width, size_t most_lines);

}  // namespace attn
