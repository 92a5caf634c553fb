// What a run measured: the record of one configuration.
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

/// One launch of several that make a case.
struct Phase {
  std::string name;
  Json pipeline;
  Timing time = {};  // n = 0 where it was not timed
};

/// Rates the device reached in this run; results are reported as a share of them.
struct Ceilings {
  double copy_gbps = 0;  // bytes read plus bytes written
  double f32_tflops = 0, f16_tflops = 0, bf16_tflops = 0;
  double tf32_tflops = 0;  // 0 where the device has no such products

  /// Products of tf32 that make one as exact as f32 (Ootomo and Yokota 2022).
  static constexpr double tf32_of_f32 = 3;
  /// Of products as exact as the dtype; of f32 the faster of multiply-adds and products of tf32.
  double matrix_tflops(DType dtype) const;
  Json json() const;
};

/// The line of one configuration, also for one that was skipped, wrong or failed.
struct Measurement {
  std::string id;  // hash of the line without id
  std::string run_id, experiment, device;
  Case config;                // the record's "case"
  std::string status = "ok";  // ok skipped wrong failed timeout oom
  std::string reason;
  std::string log;  // what the compiler said where it failed
  std::optional<Check> check;
  std::optional<Work> work;
  std::vector<Timing> time;
  DType dtype = DType::f32;            // whose matrix ceiling the rate is held against
  std::optional<Estimate> matrix_pct;  // of the matrix ceiling as it was in the same rounds, sample by sample
  std::optional<Estimate> copy_pct;    // of the copy ceiling in the same rounds, cold, where memory is the bound
  std::optional<Estimate> read_pct;    // likewise of a read
  Json pipeline, clocks;               // null where there is none; of several kernels the first
  std::vector<Phase> phases;           // of a case of several launches; else empty
  Json values;                         // what else the experiment says of the case; null where there is nothing

  const Timing* timing(Scope scope) const;
  /// What the case is judged by: device_hot; device_cold where memory is the bound; host where nothing was launched.
  const Timing* main_timing() const;
  /// What the record says of each kernel, in the order of their launches.
  std::vector<Json> kernels() const;
  /// Rates by the median of one scope; 0 without work or time. Arithmetic is at its best with hot caches; cold ones
  /// leave no doubt that the bytes came from memory. Where the preferred scope is missing, the other stands in.
  double tflops() const;
  double gbps() const;
  /// The same with the interval of the time.
  Estimate gbps_interval() const;
};

using Results = std::vector<const Measurement*>;
/// Results that differ in the `free` axes alone, by the key of the others.
std::map<std::string, Results> grouped(const Results& results, const std::set<std::string>& free);

/// Times as a list; a scope that was interrupted before its first round has nothing to say.
Json to_json(const std::vector<Timing>& times);
/// One time of such a list, read back. Throws BadInput for an unknown scope, Json::exception for a missing field or a
/// wrong type.
Timing timing_from_json(const Json& json);
/// `ceilings` are the best of the run. Throws std::runtime_error where a rate is above its ceiling by more than 5 %,
/// such a figure being an error and no result (the copy ceiling holds for cold times only), and for a number that is
/// not finite. Sets id.
Json to_json(const Measurement& measurement, const Ceilings& ceilings);
/// Throws BadInput for another schema, Json::exception for a missing field or a wrong type.
Measurement measurement_from_json(const Json& json);

}  // namespace attn
