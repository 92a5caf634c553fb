// Joins findings of several runs: the runs of a claim, their code and conditions, and the spread between the runs.
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

/// code_identity() of each kernel.
using Code = std::vector<std::string>;
Code code_of(const Json& measurement);
/// The code of each measurement's kernels, by the measurement's id.
using Codes = std::map<std::string, Code>;
Codes codes_of(const std::vector<Record>& records);

/// The figure that one run measured for a finding, of schema finding/1 or finding/2.
struct Run {
  std::string id, run_id, state;
  std::string code;  // the code of the kernels of all measurements of the finding
  // Profile, toolchain, memory limit, input, files, metric and threshold. If the host's code was timed, also the commit
  // and the host's compiler.
  std::string conditions;
  FigureKind kind = FigureKind::share;
  Session session;       // the figure that is judged
  Session ratio;         // the ratio of the last comparison; empty without a comparison
  bool relative = true;  // the figure is pooled in logarithms
  bool exact = false;    // a figure without an error
  double unit = 1;       // if not `relative`: the change of the figure if its ratios change by the factor e
};
/// Returns the run of a finding. If `codes` lacks a measurement, the run's code has the measurement's id in place of
/// its code, so that the run's code equals no known code.
Run run_of(const Record& finding, const Codes& codes);
/// Returns the run of a finding, for a caller that has finding.joined() already.
Run run_of(const Record& finding, const Json& joined, const Codes& codes);

/// A distance between two runs of one figure with the same code and conditions.
struct Distance {
  double z = 0;  // log(figure of the second / figure of the first)
  // variance of z / (scale^2 + own): the sum of Spread::between + 1/K over the two runs. K: the processes of a run.
  double weight = 6;
  // The mean square of the relative errors of the processes of one run, the run that predicts the other run's figure.
  double own = 0;
};

struct Fitted {
  Spread spread;
  size_t pairs = 0;
  double likelihood = 0;  // the logarithm of the likelihood
};
/// Returns the spread with the largest likelihood. The model: z / sqrt(weight (scale^2 + own)) has Student's t
/// distribution. The scale lies in [1e-4, 1], and the freedom lies in [1, 30].
Fitted fit(const std::vector<Distance>& distances);

/// Fits a spread to each group of pairs of runs, for all findings among the records. Returns the content of
/// spread.json: the spreads by device, experiment ("*": all experiments) and kind of figure. Groups with fewer than
/// `least_pairs` pairs are left out, so that spread_in() takes a larger group.
Json fit_spreads(const std::vector<Record>& records);
inline constexpr size_t least_pairs = 10;

}  // namespace attn::kb
