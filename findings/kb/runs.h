// What findings of several runs say together: the runs of a claim, their code and conditions, and the spread between
// them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/records/spread.h"
#include "findings/kb/store.h"

namespace attn::kb {

/// The pipelines of all kernels that a measurement launched.
std::vector<Json> kernels_of(const Json& measurement);

/// code_identity() of each kernel.
using Code = std::vector<std::string>;
/// The codes of measurements, by the measurement's id.
using Codes = std::map<std::string, Code>;
Codes codes_of(const std::vector<Record>& records);

/// A finding of either schema as an estimate of one run.
struct Run {
  std::string id, run_id, state;
  std::string code;        // of all measurements of the finding
  std::string conditions;  // profile, toolchain, memory limit, input and files; the commit if the host's code was timed
  FigureKind kind = FigureKind::share;
  Session session;       // the figure that is judged
  Session ratio;         // the ratio of the last comparison; empty without a comparison
  bool relative = true;  // the figure is pooled in logarithms
  bool exact = false;    // a figure without an error
  double unit = 1;       // the figure changes by this where a ratio changes by a factor of e, if not `relative`
};
/// Codes that are not known stand in the run's code as the measurement's id, so that they are equal to no other.
Run run_of(const Record& finding, const Codes& codes);

/// A distance between two runs of one figure with the same code and conditions.
struct Distance {
  double z = 0;       // log(figure of the second / figure of the first)
  double weight = 4;  // the variance of z / sigma^2: the sum of both 1 + 1/K for runs of K processes
  double own = 0;     // mean square of the processes' own errors, as fractions of the figure
};

struct Fitted {
  Spread spread;
  size_t pairs = 0;
  double likelihood = 0;  // logarithm
};
/// The spread with the largest likelihood: z / sqrt(weight (scale^2 + own)) is Student's t. The scale is at least 1e-4
/// and at most 1, and freedom lies in [1, 30].
Fitted fit(const std::vector<Distance>& distances);

/// A spread.json by all findings among the records: device, experiment ("*": all of them), kind. Groups with fewer than
/// `least_pairs` pairs are left out, so that spread_in() takes a larger group.
Json fit_spreads(const std::vector<Record>& records);
inline constexpr size_t least_pairs = 10;

}  // namespace attn::kb
