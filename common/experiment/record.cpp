#include "common/experiment/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "common/base/standard_streams.h"
#include "common/base/text_table.h"
#include "common/base/version.h"
#include "common/experiment/environment.h"
#include "common/experiment/report.h"

namespace attn {

std::string device_name(const DeviceInfo& info) { return fmt::format("{}, {} units", info.name, info.units); }

Measurement blank(const ExperimentSpec& spec, const DeviceInfo& info, const Json& run, const Case& config) {
  Measurement record;
  record.run_id = run.at("id");
  record.experiment = spec.name;
  record.device = device_name(info);
  record.config = config;
  if (config.has("dtype")) record.dtype = parse_dtype(config.text("dtype"));
  return record;
}

void fail(Measurement& record, std::string status, std::string reason) {
  record.status = std::move(status);
  record.reason = std::move(reason);
  record.time.clear();
  for (Phase& phase : record.phases) phase.time = {};
}

std::string label(const Case& config, const std::vector<std::string>& axes) {
  return axes.empty() ? config.key() : config.key(axes);
}

Recorder::Recorder(const Given& given, Json run)
    : given_(given),
      run_(std::move(run)),
      session_(attn::session(source_root(), given.spec.source_folders)),
      progress_(given.options.quiet) {}

void Recorder::open() {
  measurement_file_.emplace(given_.options.measurements_path);
  finding_file_.emplace(given_.options.findings_path);
}

bool Recorder::has(const Case& config) const {
  return std::ranges::find(results_, config, &Measurement::config) != results_.end();
}

bool Recorder::was_measured(const Case& config) const {
  bool timed = false;
  for (const Measurement& result : results_) {
    if (result.config != config) continue;
    if (result.status != "ok") return false;
    timed = timed || result.main_timing();
  }
  return timed;
}

void Recorder::take_over(Measurement result) {
  results_.push_back(std::move(result));
  ++taken_over_;
}

void Recorder::store(Json record, const Json& samples) {
  record["run"] = {{"ts", utc_now()}};
  for (const char* field : conditions) record["run"][field] = run_[field];
  for (const char* field : session_fields) record["run"][field] = session_[field];
  if (session_.contains("emulated")) record["run"]["emulated"] = true;
  record["id"] = record_id(record);
  keep([&] { measurement_file_->append(record); });
  if (!samples.is_null()) keep_samples(0, {{"case", record["case"]}}, samples);
  print_json(record);
  results_.push_back(measurement_from_json(record));
  progress_.finish(label(results_.back().config, label_axes_) + ": " + summary(results_.back()));
}

void Recorder::keep_samples(int process, const Json& what, const Json& samples) {
  const std::string path = given_.options.samples_path();
  if (path.empty()) return;
  Json line = {{"schema", "samples/1"}, {"experiment", given_.spec.name}, {"run", run_["id"]}, {"process", process}};
  for (const Json& fields : {what, samples}) line.update(fields);
  keep([&] {
    if (!sample_file_) sample_file_.emplace(path);
    sample_file_->append(line);
  });
}

void Recorder::store_finding(const Json& finding) {
  keep([&] { emit_finding(*finding_file_, finding); });
  print_json(finding);
}

void Recorder::append_finding(const Json& record) {
  keep([&] { finding_file_->append(record); });
}

void Recorder::keep(const std::function<void()>& write) {
  try {
    write();
  } catch (const std::runtime_error& error) {
    if (!std::exchange(unwritten_, true)) {
      tell(fmt::format("{}; the run goes on, and prints its results", error.what()));
    }
  }
}

std::string Recorder::kept() const {
  return fmt::format("{}{} {} kept in {}", unwritten_ ? "not all of " : "", counted(results_.size(), "case"),
                     results_.size() == 1 ? "is" : "are", given_.options.measurements_path);
}

void Recorder::print_json(const Json& json) const {
  if (!given_.options.json) return;
  // If stdout cannot be written, the run goes on, and run_experiment() reports the failure at the end.
  to_stdout(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void Recorder::tell_problems(const std::string& path, const std::vector<std::string>& problems) {
  constexpr size_t most = 5;  // a file without records may have thousands of bad lines
  for (size_t i = 0; i < std::min(most, problems.size()); ++i) progress_.note(path + ": " + problems[i]);
  if (problems.size() > most) progress_.note(fmt::format("{}: and {} more bad lines", path, problems.size() - most));
}

void Recorder::tell_damaged(const std::string& path, const Json& record) {
  progress_.note(fmt::format("{}: record {} is damaged, skipped", path,
                             record.contains("id") ? record["id"].dump() : "without id"));
}

}  // namespace attn
