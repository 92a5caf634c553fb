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
/// By the measurement's id.
using Codes = std::map<std::string, Code>;
Codes codes_of(const std::vector<Record>& records);

/// The figure of one finding, as one run measured it.
struct Run {
  std::string id, run_id, state;
  std::string code;  // the code of the kernels of all measurements of the finding
  // Runs are pooled only if their conditions are equal, for example the profile, the input and the toolchain. If the
  // host's code was timed, or if no kernels are known, the conditions include the commit and the host's compiler.
  std::string conditions;
  FigureKind kind = FigureKind::share;
  Session session;       // the figure that is judged
  Session ratio;         // the ratio of the recorded comparison; empty without a comparison
  bool relative = true;  // the figure is pooled in logarithms
  bool exact = false;    // the figure has no error
  double unit = 1;       // if not `relative`: the figure's derivative with respect to the logarithm of its ratios
};
/// Returns a figure of a record with a 95 % interval, in the fields `value`, `lo` and `hi` of `json`, as the estimate
/// of one process.
Part part_of(const Json& json, const char* value, const char* lo, const char* hi, int rounds, int process);

/// `joined` is finding.joined(). Takes Run::code from the finding's data.code, else from `codes`. For a measurement
/// that `codes` lacks, Run::code has the measurement's id, and so equals the code of no other run.
Run run_of(const Record& finding, const Json& joined, const Codes& codes);

/// A distance between two runs of one figure with the same code and conditions.
struct Distance {
  double z = 0;  // log(figure of the second / figure of the first)
  // The squared scale of z's t distribution is weight * (scale^2 + own). weight is 2 * Spread::between + 1/K1 + 1/K2,
  // where K1 and K2 are the numbers of processes of the two runs.
  double weight = 6;
  // The mean of (error / value)^2 over the processes of one of the runs, which predicts the other run's figure.
  double own = 0;
};

struct Fitted {
  Spread spread;
  size_t pairs = 0;       // the number of distances
  double likelihood = 0;  // the logarithm of the likelihood
};
/// Returns the most likely spread with a scale in [1e-4, 1] and a freedom in [1, 30], where z / sqrt(weight * (scale^2
/// + own)) has Student's t distribution with Spread::freedom degrees of freedom.
Fitted fit(const std::vector<Distance>& distances);

/// Fits a spread to the pairs of runs of each group of figures. Returns the content of spread.json: the spreads by
/// device or kind of device, experiment ("*": all experiments) and kind of figure. Leaves out figures without a
/// logarithm or an error, and groups with fewer than `least_pairs` pairs, so that spread_in() takes a larger group.
Json fit_spreads(const std::vector<Record>& records);
inline constexpr size_t least_pairs = 10;

}  // namespace attn::kb
