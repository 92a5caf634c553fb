// The claims of an experiment, made before it runs, and the rules by which code judges them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/records/comparison.h"
#include "common/records/measurement.h"
#include "common/records/pool.h"
#include "common/records/spread.h"

namespace attn {

/// A hypothesis, registered before anything runs. `metric` names the figure, for example "ratio of medians, worst tile
/// / best tile".
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

/// A pair of cases that a hypothesis wants measured.
struct Duel {
  std::string hypothesis;  // id
  Case baseline, contender;
};

/// The conclusion of an experiment about one hypothesis; judge() computes the verdict.
struct Conclusion {
  std::string hypothesis;      // id
  std::string subject;         // the cases that the finding is about: "head_dim=64"; part of the claim_key
  std::string selection = {};  // the values of Claim::selection: "q_len=4096"; part of the claim_key
  std::string title;           // a template for render(): "Bc=80 takes {compare.ratio:.3f} of the best power of two"
  std::string title_unless_supported = {};  // the title for the other verdicts; empty: `title`
  std::string content;                      // a template for render()
  std::vector<std::string> tags;
  /// `parts`: the figure of each process. `estimate`: the result of pool() for all parts, with the prior `prior`.
  std::vector<Part> parts = {};
  Spread prior = {};
  Pooled estimate;
  double unit = 1;       // the argument `unit` of pool(), for a figure that is not relative
  bool relative = true;  // errors are proportional to the figure, so the figure is pooled and judged in logarithms
  bool exact = false;    // a count, which has no error
  /// How far the figure (its logarithm if `relative`) moves if each of its ratios moves by the ratio's noise floor. 0
  /// without a comparison.
  double floor = 0;
  double cv = 0;
  /// True: the device throttled while it ran some of the conclusion's cases, but not while it ran the others.
  bool unlike_throttling = false;
  /// True: the device held its clocks down at its power limit while it ran some of the conclusion's cases.
  bool power_capped = false;
  /// True: a memory-bound case ran with warm caches, because no flush works on this device.
  bool warm = false;
  bool correct = true;     // every measurement that the conclusion uses has the status ok
  std::string fault = {};  // if not `correct`: the status and the reason of a measurement that is not ok
  std::optional<Comparison> compare;
  Json values = Json::object();           // all other numbers that the texts use
  std::vector<std::string> measurements;  // ids
};

/// Returns inconclusive unless all of this holds (docs/measuring.md): all results are correct; the processes together
/// measured at least `min_rounds_to_judge` rounds; memory-bound cases ran with cold caches; the interval of the next
/// run's estimate lies on one side of the threshold; the estimate is at least the noise floor away from the threshold.
/// An exact figure needs only correct results. Throws std::invalid_argument for an unknown op.
Verdict judge(const Hypothesis& hypothesis, const Conclusion& conclusion);
inline constexpr int min_rounds_to_judge = 6;
/// Returns the probability that the next run's figure and the estimate lie on different sides of the threshold, also
/// for an inconclusive verdict: 0 for an exact figure, 1 where a result is not correct.
double wrong(const Hypothesis& hypothesis, const Conclusion& conclusion);
/// Whether the clocks of a measurement or of a comparison show that the device reached its power limit.
bool at_power_limit(const Json& clocks);

/// The results and comparisons of one conclusion.
struct Evidence {
  Results results;                                  // in a pair the baseline stands before the contender
  std::vector<const Comparison*> comparisons = {};  // of `results`; the finding records the last comparison
  std::string fault = {};                           // status and reason of a record whose status is not "ok"
  size_t among = 0;                                 // size of the group that the pick is from; 0 with comparisons
};

/// Picks from a group of results. Each pick has the results for one conclusion, or the pair for one duel.
using Pick = std::function<std::vector<Results>(const Results& group)>;
using Figure = std::function<Estimate(const Evidence& evidence)>;

/// A row of an experiment's table of claims.
struct Claim {
  Hypothesis hypothesis;

  /// Which of the correct and timed results take part; empty: all.
  std::function<bool(const Measurement& result)> takes = {};
  std::set<std::string> varies = {};  // results that differ only in these axes are a group
  size_t at_least = 1;                // smaller groups are left out
  Pick pick = {};
  /// The name of an axis; empty: all picks are kept. The length of a pick is the value of this axis in the pick's first
  /// result. Picks with the largest length up to `limit` are kept.
  std::string longest = {};
  int64_t limit = std::numeric_limits<int64_t>::max();

  /// True: the picks are pairs, whose cases are measured again in turns, so the choice of the pair does not bias the
  /// figure. False: the figure is computed from what other processes measured for the cases of the pick or, without
  /// such processes, from the results of the sweep.
  bool compared = true;
  /// Returns groups of comparisons; each group gives one conclusion. Empty: each comparison of this hypothesis is a
  /// group.
  std::function<std::vector<std::vector<const Comparison*>>(const std::vector<Comparison>& comparisons)> gather = {};
  Figure figure = {};          // empty: the ratio of the last comparison
  bool exact = false;          // the figure is a count, the same in every process; no process measures it again
  bool measured_again = true;  // false: other processes would read the figure from a cache

  std::function<std::string(const Evidence& evidence)> subject = {};
  /// Axes of the first result that are part of the claim_key, but not of the subject. A claim about the longest case of
  /// a run names the length here: a run with other lengths measures another figure.
  std::vector<std::string> selection = {};
  std::function<std::vector<std::string>(const Evidence& evidence)> tags = {};
  std::string title = {}, title_unless_supported = {}, content = {};
  /// Completes the conclusion, mostly with values for its texts. Conclusion::values already has the case of a single
  /// result, or the cases of the last two results as `baseline` and `contender`.
  std::function<void(Conclusion& conclusion, const Evidence& evidence)> complete = {};
};

std::vector<Hypothesis> hypotheses(const std::vector<Claim>& claims);
/// The pairs that are to be measured for the claims.
std::vector<Duel> duels(const std::vector<Claim>& claims, const std::vector<Measurement>& results);
/// Returns the picked cases that other processes have to measure again, so that the samples by which a case was picked
/// do not enter the claim's figure: the cases of claims with `measured_again` that are neither `compared` nor `exact`.
std::vector<Case> cases_of_claims(const std::vector<Claim>& claims, const std::vector<Measurement>& results);

/// What other processes measured, and what is known about the spread between them.
struct Processes {
  std::vector<std::vector<Measurement>> results = {};  // of each process: the cases of cases_of_claims()
  /// The prior of a hypothesis's figures, by its id.
  std::function<Spread(const std::string& hypothesis, FigureKind kind)> prior = [](const auto&, FigureKind) {
    return Spread{};
  };
};
/// Returns the conclusions of all claims. Each figure is pooled from the processes. Without other processes, the
/// results and comparisons of this process are the only part.
std::vector<Conclusion> conclude(const std::vector<Claim>& claims, const std::vector<Measurement>& results,
                                 const std::vector<Comparison>& comparisons, const Processes& processes = {});
Conclusion conclude(const Claim& claim, const Evidence& evidence, const Processes& processes = {});

double seconds(const Measurement& result);  // median of the main timing; the result must have one
bool faster(const Measurement* a, const Measurement* b);
const Measurement* fastest(const Results& results);  // null where there are no results
/// The result with the largest value of an axis; the fastest of several such results. Null where there are no results.
const Measurement* largest(const Results& results, const std::string& axis);
/// The results whose axis has this value. `value` is written as in a case's key.
Results where(const Results& results, const std::string& axis, const std::string& value);
/// One pick: the fastest baseline and the fastest contender. No pick where either list is empty.
std::vector<Results> pair(const Results& baselines, const Results& contenders);

/// Picks each result by itself.
std::vector<Results> each(const Results& group);
/// Picks, for each pair of values of the axis, the fastest result with the first value and the fastest with the second.
Pick steps(const std::string& axis, const std::vector<std::pair<std::string, std::string>>& values);
/// Picks pairs: the fastest result with this value of the axis, and each result with another value.
Pick against(const std::string& axis, const std::string& value);
/// One pick: the fastest result at each value of the axis, in order of value. No pick where there are fewer than
/// `at_least_values` values.
Pick fastest_at_each(const std::string& axis, size_t at_least_values);

/// Time of the second result / time of the first. The two did not take turns while they were measured, so the interval
/// spans all ratios that the intervals of the two times allow.
Estimate ratio_of_medians(const Evidence& evidence);
/// The exponent b in time = a * axis^b (scaling_exponent()).
Figure exponent_over(const std::string& axis);

/// Returns a function for Claim::subject. The subject names axes of the evidence's first result: the axes `first`,
/// then all axes except `left_out`.
std::function<std::string(const Evidence&)> subject_without(const std::set<std::string>& left_out,
                                                            const std::vector<std::string>& first = {});

}  // namespace attn
