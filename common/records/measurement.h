// The record of one measured configuration.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/data/compare.h"
#include "common/data/tensor.h"
#include "common/launch/work.h"
#include "common/records/case.h"
#include "common/records/record_file.h"
#include "common/records/timing.h"

namespace attn {

/// One launch of a case that has several launches.
struct Phase {
  std::string name;
  Json pipeline;
  Timing time = {};  // n = 0 where the launch was not timed
};

/// The highest rates that the device reached in this run. 0: not known.
struct Ceilings {
  double copy_gbps = 0;  // of a copy: bytes read plus bytes written, per second
  double f32_tflops = 0, f16_tflops = 0, bf16_tflops = 0;
  double tf32_tflops = 0;         // 0 where the device does not multiply tf32
  double peak_16_bit_tflops = 0;  // DeviceInfo::peak_16_bit_tflops, which is not measured

  /// The number of products of tf32 that together are as accurate as one product of f32 (Ootomo and Yokota 2022).
  static constexpr double tf32_of_f32 = 3;
  /// The rate of products that are as accurate as products of the dtype; for f32 these may be products of tf32. Throws
  /// std::logic_error for e4m3 and int8.
  double matrix_tflops(DType dtype) const;
  /// matrix_tflops() by the maker's data, in which products of tf32 run at half the rate of products of 16 bits. 0 if
  /// the maker's rate is not known.
  double peak_tflops(DType dtype) const;
  Json json() const;
};

/// The record of one configuration.
struct Measurement {
  std::string id;  // record_id() of the record
  std::string run_id, experiment, device;
  Case config;                // the record's "case"
  std::string status = "ok";  // ok skipped wrong failed timeout oom
  std::string reason;
  std::string log;  // the compiler's message, for a kernel that does not compile
  std::optional<Check> check;
  std::optional<Work> work;
  std::vector<Timing> time;
  DType dtype = DType::f32;            // the dtype whose matrix ceiling the rate is compared with
  std::optional<Estimate> matrix_pct;  // per cent of the matrix ceiling; samples of case and ceiling took turns
  std::optional<Estimate> copy_pct;    // as matrix_pct, of the copy ceiling with cold caches; only if memory-bound
  std::optional<Estimate> read_pct;    // as copy_pct, of the read ceiling
  Json pipeline, clocks;               // `pipeline` describes the first kernel; both may be null
  std::vector<Phase> phases;           // the launches of a case that has several launches; else empty
  Json values;                         // further values from the experiment; null where there are none

  const Timing* timing(Scope scope) const;
  /// The time by which the case is judged: device_cold if the case is memory-bound and this time was measured; else
  /// device_hot, or host if device_hot was not measured. Null if there is no such time.
  const Timing* main_timing() const;
  /// The pipeline of each kernel, in the order of their launches.
  std::vector<Json> kernels() const;
  /// Rates by the median of one scope; 0 without work or time. tflops() prefers hot caches, and gbps() cold caches,
  /// where all bytes come from memory. Each takes the other scope where the preferred scope is missing.
  double tflops() const;
  double gbps() const;
  /// gbps() with the interval that follows from the time's interval.
  Estimate gbps_interval() const;
};

using Results = std::vector<const Measurement*>;
/// Returns groups of results that differ only in the `free` axes, by the key of the other axes.
std::map<std::string, Results> group_results(const Results& results, const std::set<std::string>& free);

/// Times as a list, without the scopes that were interrupted before their first round.
Json to_json(const std::vector<Timing>& times);
/// The record as JSON, with its id. Throws std::runtime_error for a number that is not finite, and for a rate more than
/// 5 % above its ceiling: such a rate shows an error in the work, the time or the ceiling. (The copy ceiling limits
/// only rates with cold caches.)
Json to_json(const Measurement& measurement, const Ceilings& ceilings);
/// Throws BadInput for another schema, an unknown dtype or scope, or a malformed case; Json::exception for a missing
/// field or a wrong type.
Measurement measurement_from_json(const Json& json);

}  // namespace attn
