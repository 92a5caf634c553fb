// A pair of cases that took turns in one process or in several processes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/records/measurement.h"
#include "common/records/pool.h"

namespace attn {

/// A baseline (A) and a contender (B), which take turns with A', the baseline again with separate tensors. The ratio
/// A' / A gives the noise floor of the comparison.
struct Comparison {
  std::string hypothesis;  // id of the hypothesis that asked for the comparison
  Case baseline, contender;
  Estimate ratio;            // contender / baseline, in the scope of `time`
  Estimate aa;               // A' / A
  double cv = 0;             // the larger CV of the two cases
  std::vector<Timing> time;  // of the baseline and of the contender
  int process = 1;           // the number of the process that measured the pair
  Json clocks = {};          // during the rounds; null where the device has no clocks to read
  /// The comparisons of the single processes; empty for a comparison of one process.
  std::vector<Comparison> parts = {};
  Spread prior = {};  // the prior with which `parts` were pooled to `ratio`

  /// The noise floor: the larger of |log(aa.ci_lo)| and |log(aa.ci_hi)|.
  double aa_floor() const;
};

/// Whether two duels or comparisons have the same baseline and contender.
bool same_pair(const auto& a, const auto& b) { return a.baseline == b.baseline && a.contender == b.contender; }

/// The samples of one process for a comparison, in seconds. A round has one sample of each of A, B and A'.
struct PairSamples {
  Scope scope = Scope::device_hot;
  std::string stop;
  Series baseline, contender, again;
  Json clocks = {};  // while the two cases took turns; null where the device has no clocks to read
};

/// The samples of a series in one list, each with six significant digits.
std::vector<double> rounded_samples(const Series& series);

/// Returns the comparison by one process.
Comparison compared(const Case& baseline, const Case& contender, const PairSamples& samples, uint64_t seed);
/// Returns the comparison by one or more processes. `samples[i]` are the samples of `parts[i]`. The ratio is pooled
/// (pool()); times and the noise floor follow from the rounds of all processes together. Throws std::invalid_argument
/// without parts, and if `parts` and `samples` differ in size.
Comparison compared(std::span<const Comparison> parts, std::span<const PairSamples> samples, const Spread& prior,
                    uint64_t seed);

/// Sets the ratio to the pooled ratio of the parts, with this prior. A comparison without parts stays as it is.
void pool_parts(Comparison& comparison, const Spread& prior);

/// Returns the ratio of a comparison by one process, as a part for pool().
Part ratio_part(const Comparison& comparison);

Json to_json(const Comparison& comparison);
/// Throws BadInput for an unknown scope or a malformed case, Json::exception for a missing field or a wrong type.
Comparison comparison_from_json(const Json& json);

/// The samples have six significant digits.
Json to_json(const PairSamples& samples);
PairSamples samples_from_json(const Json& json);

}  // namespace attn
