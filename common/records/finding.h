// Records: what a run measured and what it learned, one JSON object a line. docs/records.md lists every field.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/data/compare.h"
#include "common/data/tensor.h"
#include "common/records/case.h"
#include "common/records/timing.h"

namespace attn {

using Json = nlohmann::ordered_json;

/// What one launch does: causal counts only unmasked pairs (about half).
struct Work {
  double flops = 0;
  double bytes = 0;  // each input read once, each output written once
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
  std::optional<Check> check;
  std::optional<Work> work;
  std::vector<Timing> time;
  DType dtype = DType::f32;            // whose matrix ceiling the rate is held against
  std::optional<Estimate> matrix_pct;  // of the matrix ceiling as it was in the same rounds, sample by sample
  Json pipeline, clocks;               // null where there is none
  Json values;                         // what else the experiment says of the case; null where there is nothing

  const Timing* timing(Scope scope) const;
  /// What the case is judged by: device_hot; host where it is about the host and nothing was launched.
  const Timing* main_timing() const;
  /// Rates by the median of one scope; 0 without work or time. Arithmetic is at its best with hot caches; cold ones
  /// leave no doubt that the bytes came from memory. Where the preferred scope is missing, the other stands in.
  double tflops() const;
  double gbps() const;
};

using Results = std::vector<const Measurement*>;
/// Results that differ in the `free` axes alone, by the key of the others.
std::map<std::string, Results> grouped(const Results& results, const std::set<std::string>& free);

/// `ceilings` are the best of the run. Throws std::runtime_error where a rate is above its ceiling by more than 5 %,
/// such a figure being an error and no result (the copy ceiling holds for cold times only), and for a number that is
/// not finite. Sets id.
Json to_json(const Measurement& measurement, const Ceilings& ceilings);
/// Throws BadInput for another schema, Json::exception for a missing field or a wrong type.
Measurement measurement_from_json(const Json& json);

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

/// What an experiment concludes for one hypothesis; the verdict is computed from it.
struct Conclusion {
  std::string hypothesis;  // id
  std::string subject;     // what this finding is about beside the hypothesis: "head_dim=64"; part of the claim_key
  std::string title;       // templates over data: "Bc=80 takes {compare.ratio:.3f} of the best power of two"
  std::string content;
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

/// Fills "{path.to.value:format}" from data; a missing path throws std::out_of_range, a bad format or a lone brace
/// std::invalid_argument. The format is fmt's; braces are written twice.
std::string render(const std::string& text, const Json& data);

/// One finding as a JSON object, all fields of docs/records.md. `run` and `env` come from the experiment. Throws as
/// render() does, and std::runtime_error for a number that is not finite.
Json make_finding(const std::string& experiment, const std::string& device, const Hypothesis& hypothesis,
                  const Conclusion& conclusion, bool replicated, const Json& run, const Json& env);

/// id = first 16 hex digits of the SHA-256 of the record without its id.
std::string record_id(const Json& record);
/// Groups replications: experiment, hypothesis, device name and subject, but no figures.
std::string claim_key(const std::string& experiment, const std::string& hypothesis, const std::string& device,
                      const std::string& subject);

/// Appends one line with a single write and a flush. Throws std::runtime_error (disk full, unwritable) with the path;
/// a partly written line is cut off again, so that the file stays whole.
class RecordFile {
 public:
  explicit RecordFile(std::string path);  // throws BadInput where the file cannot be opened for appending
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  void append(const Json& record);

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// Appends a finding to a findings file (emit_finding of the plan).
void emit_finding(RecordFile& file, const Json& finding);

/// All whole lines of a record file; a torn or unreadable line is skipped and described in `problems` ("line 7: ...").
/// A missing file has no records. Before appending to a file with a torn last line, RecordFile ends that line.
std::vector<Json> read_records(const std::string& path, std::vector<std::string>& problems);

}  // namespace attn
