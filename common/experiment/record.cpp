#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "common/base/error.h"
#include "common/base/standard_streams.h"
#include "common/base/text_table.h"
#include "common/experiment/environment.h"
#include "common/experiment/state.h"

namespace attn {

std::string device_name(const DeviceInfo& info) { return fmt::format("{}, {} units", info.name, info.units); }

void fail(Measurement& record, std::string status, std::string reason) {
  record.status = std::move(status);
  record.reason = std::move(reason);
  record.time.clear();
  for (Phase& phase : record.phases) phase.time = {};
}

void Experiment::State::fail_lost(Measurement& record, const DeviceLost& error) const {
  const std::string status = dynamic_cast<const DeviceTimeout*>(&error) ? "timeout" : "failed";
  const std::string reason = first_line(error.what());
  if (options.worker && device->info().on_host) options.worker->activity.end_case(status, reason);
  fail(record, status, device_lost + reason);
}

Measurement Experiment::State::blank(const Case& config) const {
  Measurement record;
  record.run_id = run["id"];
  record.experiment = spec.name;
  record.device = device_name(device->info());
  record.config = config;
  if (config.has("dtype")) record.dtype = parse_dtype(config.text("dtype"));
  return record;
}

void Experiment::State::store(Measurement record, int launches_per_sample, const Json& samples) {
  Json json = within_ceilings(record);
  for (Json& timing : json["time"]) {
    timing["launches_per_sample"] = timing["scope"] == name(Scope::device_cold) ? 1 : launches_per_sample;
  }
  if (record.main_timing()) {
    json["busy"] = disturbance(device->info(), record, started.cores, others(started, core_times()));
  }
  json["run"] = {{"ts", utc_now()}};
  for (const char* field : conditions) json["run"][field] = run[field];
  for (const char* field : session_fields) json["run"][field] = session[field];
  json["id"] = record.id = record_id(json);
  if (part_file) {
    Json line = {{"measurement", json}};
    if (!samples.is_null()) line["samples"] = samples;
    keep([&] { part_file->append(line); });
  } else {
    keep([&] { measurement_file->append(json); });
    if (!samples.is_null()) keep_samples(0, {{"case", record.config.json()}}, samples);
  }
  print_json(json);
  progress.finish(label(record.config) + ": " + summary(record));
  if (cases_left > 0) --cases_left;
  results.push_back(std::move(record));
  if (device->lost()) throw Restart{};
}

void Experiment::State::keep_samples(int process, const Json& what, const Json& samples) {
  const std::string path = options.samples_path();
  if (path.empty()) return;
  Json line = {{"schema", "samples/1"}, {"experiment", spec.name}, {"run", run["id"]}, {"process", process}};
  for (const Json& fields : {what, samples}) line.update(fields);
  keep([&] {
    if (!sample_file) sample_file.emplace(path);
    sample_file->append(line);
  });
}

void Experiment::State::keep(const std::function<void()>& write) {
  try {
    write();
  } catch (const std::runtime_error& error) {
    if (!std::exchange(unwritten, true)) {
      progress.note(fmt::format("{}: {}; the run goes on, and prints its results", spec.name, error.what()));
    }
  }
}

std::string Experiment::State::kept() const {
  return fmt::format("{}{} {} kept in {}", unwritten ? "not all of " : "", counted(results.size(), "case"),
                     results.size() == 1 ? "is" : "are", options.measurements_path);
}

void Experiment::State::store_skipped(Measurement record, std::string reason) {
  fail(record, "skipped", std::move(reason));
  store(std::move(record));
}

void Experiment::State::print_json(const Json& json) const {
  if (!options.json) return;
  // If stdout cannot be written, the run goes on, and run_experiment() reports the failure at the end.
  const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  to_stdout(line);
}

std::string Experiment::State::label(const Case& config) const {
  return label_axes.empty() ? config.key() : config.key(label_axes);
}

}  // namespace attn
