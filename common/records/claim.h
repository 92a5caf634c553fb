// What an experiment claims before it runs, and how code judges it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/records/measurement.h"

namespace attn {

/// Registered before anything runs. `metric` names the figure, e.g. "ratio of medians, worst tile / best tile".
struct Hypothesis {
  std::string id;  // short, e.g. "bc80"
  std::string text;
  std::string metric;
  std::string op;  // "<", "<=", ">" or ">="
  double threshold = 0;
  std::string origin;  // where the expectation comes from
};

enum class State { supported, refuted, inconclusive };
std::string_view name(State state);

struct Verdict {
  State state = State::inconclusive;
  std::string reason;
};

/// A pair that a hypothesis wants measured.
struct Duel {
  std::string hypothesis;  // id
  Case baseline, contender;
};

/// A baseline and a contender measured A B A' interleaved; A' is the baseline again, so that every comparison brings
/// its own noise floor.
struct Comparison {
  std::string hypothesis;  // id of the one that asked for it
  Case baseline, contender;
  Estimate ratio;            // contender / baseline, of device_hot time, or of host time where that is what is timed
  Estimate aa;               // baseline / baseline
  double aa_floor() const;   // largest distance of the A/A interval from 1
  double cv = 0;             // larger of the two
  std::vector<Timing> time;  // baseline, contender
};

/// What a reader should do. An open verdict gives no advice.
struct Advice {
  std::string holds, refuted;
};

/// What an experiment concludes for one hypothesis; the verdict is computed from it.
struct Conclusion {
  std::string hypothesis;  // id
  std::string subject;     // what this finding is about beside the hypothesis: "head_dim=64"; part of the claim_key
  std::string title;       // templates over data: "Bc=80 takes {compare.ratio:.3f} of the best power of two"
  std::string title_unless_supported = {};  // for a title that would be wrong otherwise; empty: `title` is always right
  std::string content;
  Advice advice = {};
  std::vector<std::string> tags;
  Estimate estimate;    // the metric's value
  double aa_floor = 0;  // 0 where the metric is no ratio of times
  double cv = 0;
  bool correct = true;  // every measurement behind it passed its check
  std::optional<Comparison> compare;
  Json values = Json::object();           // every other number the texts use
  std::vector<std::string> measurements;  // ids
};

/// supported or refuted where the interval lies on one side of the threshold and the estimate is farther from the
/// threshold than the A/A floor (docs/measuring.md). Throws std::invalid_argument for an unknown op.
Verdict judge(const Hypothesis& hypothesis, const Conclusion& conclusion);
/// 0 incorrect; 0.5 inconclusive; 0.6 CV >= 5 %; 0.8 clean; 0.95 once an independent run agrees.
double confidence(const Verdict& verdict, const Conclusion& conclusion, bool replicated);

/// What one conclusion rests on.
struct Evidence {
  Results results;                                  // a baseline before its contender
  std::vector<const Comparison*> comparisons = {};  // of these results; the last one is recorded
  bool correct = true;                              // no record of these cases failed its check
  size_t among = 0;                                 // how many results these were picked from; 0 with comparisons
};

/// From a group of results: those behind one conclusion each.
using Pick = std::function<std::vector<Results>(const Results& group)>;
using Figure = std::function<Estimate(const Evidence& evidence)>;

/// A row of an experiment's table of claims: a hypothesis, which results answer it and how, and the words for it.
struct Claim {
  Hypothesis hypothesis;

  /// Which correct and timed results take part; all where it is empty.
  std::function<bool(const Measurement& result)> takes = {};
  std::set<std::string> varies = {};  // results that differ in these axes alone are a group
  size_t at_least = 1;                // results in a group; a smaller one says nothing
  Pick pick = {};
  std::string longest = {};  // of all picks, only those with the largest value of this axis, up to `limit`
  int64_t limit = std::numeric_limits<int64_t>::max();

  /// True: the picks are pairs, which are measured again in turn. Being measured anew, a pair is not biased by having
  /// been picked. False: the times of the sweep are the answer.
  bool compared = true;
  /// The comparisons behind one conclusion each; empty: each comparison that the hypothesis asked for.
  std::function<std::vector<std::vector<const Comparison*>>(const std::vector<Comparison>& comparisons)> gather = {};
  Figure figure = {};  // empty: the ratio of the last comparison

  std::function<std::string(const Evidence& evidence)> subject = {};
  std::function<std::vector<std::string>(const Evidence& evidence)> tags = {};
  std::string title = {}, title_unless_supported = {}, content = {};
  Advice advice = {};
  /// Adds to the conclusion, above all the further values that its texts use. There are already: the case of a single
  /// result, or the cases of the last pair as `baseline` and `contender`.
  std::function<void(Conclusion& conclusion, const Evidence& evidence)> complete = {};
};

std::vector<Hypothesis> hypotheses(const std::vector<Claim>& claims);
/// The pairs that claims want measured, claim by claim.
std::vector<Duel> duels(const std::vector<Claim>& claims, const std::vector<Measurement>& results);
std::vector<Conclusion> conclude(const std::vector<Claim>& claims, const std::vector<Measurement>& results,
                                 const std::vector<Comparison>& comparisons);
Conclusion conclude(const Claim& claim, const Evidence& evidence);

double seconds(const Measurement& result);  // median of the main timing, which must be there
bool faster(const Measurement* a, const Measurement* b);
const Measurement* fastest(const Results& results);  // null where there are no results
/// The result with the largest value of an axis; of several the fastest. Null where there are no results.
const Measurement* largest(const Results& results, const std::string& axis);
/// The results whose axis has this value, written as in a case's key.
Results where(const Results& results, const std::string& axis, const std::string& value);
/// The fastest of one against the fastest of the other, as the one pick; no pick where either is empty.
std::vector<Results> pair(const Results& baselines, const Results& contenders);

/// Each result by itself.
std::vector<Results> each(const Results& group);
/// Pairs of the fastest with one value of the axis, and the fastest with the other.
Pick steps(const std::string& axis, const std::vector<std::pair<std::string, std::string>>& values);
/// Pairs of the fastest with this value of the axis, and each result with another.
Pick against(const std::string& axis, const std::string& value);
/// The fastest at each value of the axis, in order of value, as the one pick; no pick where there are fewer values.
Pick fastest_at_each(const std::string& axis, size_t at_least_values);

/// Time of the second result / time of the first, which were not measured in turn: the interval reaches from the
/// closest to the farthest that theirs allow.
Estimate ratio_of_medians(const Evidence& evidence);
/// Exponent of time over the axis.
Figure exponent_over(const std::string& axis);

/// The axes of the first result but `left_out`, after those in `first`.
std::function<std::string(const Evidence&)> subject_without(const std::set<std::string>& left_out,
                                                            const std::vector<std::string>& first = {});

}  // namespace attn
