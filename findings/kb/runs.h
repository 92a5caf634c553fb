// The runs that measured a claim: the figure, the code and the conditions of each run, and the spread between runs.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/records/spread.h"
#include "findings/kb/store.h"

namespace attn::kb {

/// Returns the pipeline (key, hashes, registers, ...) of each kernel that a measurement launched.
std::vector<Json> kernels_of(const Json& measurement);

/// The hash of the machine code of each kernel of a measurement.
using Code = std::vector<std::string>;
Code code_of(const Json& measurement);
/// What a finding takes from the measurements that it names.
struct Ran {
  Code code;
  bool power_capped = false;  // at_power_limit()
};
Ran ran(const Json& measurement);
/// By the measurement's id.
using Rans = std::map<std::string, Ran>;
Rans rans_of(const std::vector<Record>& records);

/// The figure of one finding, as one run measured it.
struct Run {
  std::string id, run_id, state;
  std::string code;  // the code of the kernels of all measurements of the finding
  // Runs are pooled only if their conditions are equal, for example the profile, the input and the toolchain. If the
  // host's code was timed, or if no kernels are known, the conditions include the commit and the host's compiler. An
  // exact figure is a condition itself: another value was counted by another code, or from other inputs.
  std::string conditions;
  FigureKind kind = FigureKind::share;
  Session session;            // the figure that is judged
  Session ratio;              // the ratio of the recorded comparison; empty without a comparison
  bool relative = true;       // the figure is pooled in logarithms
  bool exact = false;         // the figure has no error
  bool power_capped = false;  // the device reached its power limit in one of the cases
  bool loaded = false;        // other programs used the machine (`session.loaded` of the run's header)
  double unit = 1;            // if not `relative`: the figure's derivative with respect to the logarithm of its ratios
};
/// Returns a figure of a record with a 95 % interval, in the fields `value`, `lo` and `hi` of `json`, as the estimate
/// of one process.
Part part_of(const Json& json, const char* value, const char* lo, const char* hi, int rounds, int process);

/// `joined` is finding.joined(). Takes Run::code from the finding's data.code, else from `rans`. For a measurement that
/// `rans` lacks, Run::code has the measurement's id, and so equals the code of no other run.
Run run_of(const Record& finding, const Json& joined, const Rans& rans);

/// A distance between two runs of one figure with the same code and conditions.
struct Distance {
  double z = 0;  // log(figure of the second / figure of the first), or their difference / Run::unit
  // The squared scale of z's t distribution is weight * (scale^2 + own). weight is 2 * Spread::between + 1/K1 + 1/K2,
  // where K1 and K2 are the numbers of processes of the two runs.
  double weight = 6;
  // The mean of (error / value)^2, or of (error / unit)^2, over the processes of one of the runs, which predicts the
  // other run's figure.
  double own = 0;
};

/// Returns the most likely scale in [1e-4, 1], where z / sqrt(weight * (scale^2 + own)) has Student's t distribution
/// with the degrees of freedom of Spread{}.
double fit(const std::vector<Distance>& distances);

/// Fits the spreads to the pairs of runs of each figure, and tests them. Returns the content of spread.json:
///   spread    scale and number of pairs by device or kind of device; by "EXPERIMENT/HYPOTHESIS", "EXPERIMENT" or "*";
///             and by kind of figure. Groups with fewer than `least_pairs` pairs are left out. If all pairs of a kind
///             of device are of one device, the scale is at least that of the next wider group.
///   coverage  for each device and kind of figure, each device, each kind of figure, and for all (`device` or `kind` is
///             "all"): how many figures of single runs lie in the interval `next` that the figure's other runs give,
///             with spreads that are fitted without the run: `pairs`, `inside`, the 95 % interval `ci_lo` to `ci_hi` of
///             the share, the quartiles `half_width` of half the interval (as a fraction of the figure, or else in its
///             unit), the number `decided` of verdicts of the other runs, and how many of them are expected to be
///             (`wrong`) and are (`turned`) on the other side of the threshold in the run.
/// Leaves out exact figures, runs on a loaded machine, and pairs of figures that are equal to the last digit.
Json fit_spreads(const std::vector<Record>& records);
inline constexpr size_t least_pairs = 10;
/// The text of spread.json: a line for each row of `coverage` and for each topic.
std::string spread_text(const Json& fitted);

}  // namespace attn::kb
