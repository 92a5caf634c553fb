// What a run has measured, in memory and in its files. The Recorder owns the results, the files of measurements,
// findings and samples, the description of the run, and the progress on stderr.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/progress.h"
#include "common/experiment/experiment.h"
#include "common/records/record_file.h"

namespace attn {

/// The reason in the record of a case that the budget did not reach. --resume measures such a case.
inline constexpr const char* budget_spent = "budget spent";

/// The first words of the reason in the record of a case that lost the device or ended its worker. --resume does not
/// run this case again, because the case might end in the same way.
inline constexpr const char* device_lost = "device lost: ";

/// The fields in which a record's `run` must equal this run. --resume does not take over a record that differs.
inline constexpr const char* conditions[] = {"device", "seed", "profile", "threadgroup_memory_bytes", "input", "files"};

/// The fields of a record's `run` that must equal this run's session. If one differs, --resume throws BadInput, because
/// the run would go on with other code, or on another machine.
inline constexpr const char* session_fields[] = {"commit", "diff", "machine"};

/// Thrown to end a run after an interruption, once the measurements are recorded.
struct Interrupted {};

/// Whether the process received SIGINT or SIGTERM.
bool interrupted();

inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The name of the hardware in records. The name includes the number of units, because a device may be a part of a
/// machine (two of its threads, for example).
std::string device_name(const DeviceInfo& info);

/// What a run is given. It does not change, and outlives who has it.
struct Given {
  const ExperimentSpec& spec;
  const Options& options;
  const DeviceInfo& info;
};

/// A record without results.
Measurement blank(const ExperimentSpec& spec, const DeviceInfo& info, const Json& run, const Case& config);

/// Sets the status and the reason of a record whose case was skipped or failed, and removes the record's times.
void fail(Measurement& record, std::string status, std::string reason);
inline Measurement skipped(Measurement record, std::string reason) {
  fail(record, "skipped", std::move(reason));
  return record;
}

/// The axes of `axes` with their values in this case, for messages; the whole case without `axes`.
std::string label(const Case& config, const std::vector<std::string>& axes);

class Recorder {
 public:
  /// `run` describes the run in records (run/1).
  Recorder(const Given& given, Json run);

  /// Opens the files of measurements and findings. Throws BadInput.
  void open();
  const Json& run() const { return run_; }
  const Json& session() const { return session_; }
  /// Goes on with the run of this id.
  void go_on(const std::string& run_id) { run_["id"] = run_id; }

  const std::vector<Measurement>& results() const { return results_; }
  bool has(const Case& config) const;
  /// Whether the case has a correct result with a time, and did not fail later.
  bool was_measured(const Case& config) const;
  /// Keeps the result of an earlier run.
  void take_over(Measurement result);
  /// Whether all results are of an earlier run.
  bool only_taken_over() const { return results_.size() == taken_over_; }
  /// Writes and keeps the record of a case: gives it the fields that tell the run, and its id.
  void store(Json record, const Json& samples = nullptr);
  /// Appends a record samples/1: `what` names the case or the pair. `process` is 0 for samples of the sweep, else the
  /// number (from 1) of the process that measured the pair, or measured the case again.
  void keep_samples(int process, const Json& what, const Json& samples);
  void store_finding(const Json& finding);
  /// Appends a record to the file of findings.
  void append_finding(const Json& record);
  /// "5 cases are kept in measurements.jsonl".
  std::string kept() const;
  /// Whether a record could not be written. The run says so once, goes on, and prints its results.
  bool unwritten() const { return unwritten_; }
  void print_json(const Json& json) const;

  Progress& progress() { return progress_; }
  /// Prints a line for the user, which begins with the experiment's name.
  void tell(const std::string& text) { progress_.note(given_.spec.name + ": " + text); }
  /// Prints the problems that read_records() found in a file.
  void tell_problems(const std::string& path, const std::vector<std::string>& problems);
  /// Prints that a record of a file is damaged.
  void tell_damaged(const std::string& path, const Json& record);
  /// The axes in which the cases of this run differ. Progress names them.
  void set_label_axes(std::vector<std::string> axes) { label_axes_ = std::move(axes); }
  const std::vector<std::string>& label_axes() const { return label_axes_; }

 private:
  void keep(const std::function<void()>& write);

  const Given given_;
  Json run_;
  const Json session_;
  Progress progress_;
  std::vector<std::string> label_axes_;
  std::vector<Measurement> results_;
  size_t taken_over_ = 0;
  bool unwritten_ = false;
  std::optional<RecordFile> measurement_file_, finding_file_, sample_file_;
};

}  // namespace attn
