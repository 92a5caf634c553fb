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
  double unit = 1;       // if not `relative`: the derivative of the figure by the logarithm of its ratios
};
/// Returns the run of a finding. If `codes` lacks a measurement of the finding, Run::code has the measurement's id for
/// it, and so equals the code of no other run.
Run run_of(const Record& finding, const Codes& codes);
/// Returns the run of a finding, for a caller that has finding.joined() already.
Run run_of(const Record& finding, const Json& joined, const Codes& codes);

/// A distance between two runs of one figure with the same code and conditions.
struct Distance {
  double z = 0;  // log(figure of the second / figure of the first)
  // The variance of z is weight * (scale^2 + own). weight is 2 * Spread::between + 1 / K1 + 1 / K2, with the numbers K1
  // and K2 of the processes of the two runs.
  double weight = 6;
  // One of the two runs predicts the other run's figure. `own` is the mean of (error / value)^2 over its processes.
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

/// Pairs the runs of each figure, groups the pairs, and fits a spread to each group. Exact figures and figures that are
/// not above 0 are left out. Returns the content of
/// spread.json: the spreads by device, experiment ("*": all experiments) and kind of figure. Groups with fewer than
/// `least_pairs` pairs are left out, so that spread_in() takes a larger group.
Json fit_spreads(const std::vector<Record>& records);
inline constexpr size_t least_pairs = 10;

}  // namespace attn::kb
