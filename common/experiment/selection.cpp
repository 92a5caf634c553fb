#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/base/shell.h"
#include "common/experiment/environment.h"
#include "common/experiment/state.h"
#include "common/records/recorded.h"

namespace attn {
namespace {

/// A condition of a record's run; null if the record was written before this condition existed.
Json condition(const Json& run, const char* name) { return run.contains(name) ? run[name] : Json(nullptr); }

/// Thrown if a record of the run to resume is from another session.
struct OtherSession {
  const char* field;
  Json recorded, now;
};

std::string new_run_id(const std::string& time) {
  std::random_device random;
  return sha256(fmt::format("{} {} {}", time, getpid(), random())).substr(0, 16);
}

Json file_json(const std::string& option, const std::string& path) {
  if (path.empty()) return nullptr;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw BadInput(fmt::format("{} {}: cannot be read", option, path));
  return {{"path", path}, {"sha256", sha256(text.str())}};
}

/// The files that are given, by option; null if no option gives a file.
Json files_json(const Files& files) {
  Json json;
  for (const auto& [option, path] : files) {
    if (!path.empty()) json[option] = file_json(option, path);
  }
  return json;
}

bool is_finding(const Json& record) { return record.is_object() && record.value("schema", "").starts_with("finding/"); }

const Json& run_of(const Json& record) { return is_finding(record) ? record.at("data").at("run") : record.at("run"); }

/// Looks for the record whose id starts with options.replay: in the measurements file and in the findings file, else in
/// findings/recorded of the source tree. Returns the record, and sets the options to the values of the record's run.
/// Throws BadInput, for example if there is no such record, or more than one.
Json find_replayed(Options& options, const ExperimentSpec& spec) {
  std::vector<std::string> problems;
  std::map<std::string, Json> found;
  const auto look_in = [&](std::vector<Json> records) {
    join_runs(records);
    for (Json& record : records) {
      const std::string id = record.value("id", ""), schema = record.value("schema", "");
      if (schema.starts_with("run/")) continue;
      if (id.starts_with(options.replay)) found.emplace(id, std::move(record));
    }
  };
  for (const std::string& path : {options.measurements_path, options.findings_path}) {
    look_in(read_records(path, problems));
  }
  std::string files = fmt::format("{} or {}", options.measurements_path, options.findings_path);
  if (found.empty() && !recorded_files(source_root()).empty()) {
    files =
        fmt::format("{}, {} or {}/findings/recorded", options.measurements_path, options.findings_path, source_root());
    std::vector<Json> records;
    for (const std::string& line : recorded_lines(source_root(), options.replay)) records.push_back(parse_json(line));
    look_in(std::move(records));
  }
  if (found.empty()) throw BadInput(fmt::format("--replay {}: no such record in {}", options.replay, files));
  if (found.size() > 1) {
    throw BadInput(
        fmt::format("--replay {}: {} records in {} have an id that starts with these digits; give more digits",
                    options.replay, found.size(), files));
  }
  Json record = std::move(found.begin()->second);
  try {
    const std::string experiment = (is_finding(record) ? record.at("data") : record).at("experiment");
    if (experiment != spec.name) {
      throw BadInput(fmt::format("--replay {}: is a record of {}; replay the record with {}", options.replay,
                                 experiment, experiment));
    }
    const Json& run = run_of(record);
    options.device = run.at("device");
    options.seed = run.at("seed");
    options.profile = run.at("profile");
    if (const Json& bytes = run.at("threadgroup_memory_bytes"); !bytes.is_null()) {
      options.threadgroup_memory_bytes = bytes.get<size_t>();
    }
    const auto take_file = [&](const Json& recorded, const std::string& option, std::string& path) {
      if (recorded.is_null()) return;
      path = recorded.at("path");
      if (file_json(option, path) != recorded) {
        throw BadInput(fmt::format("--replay {}: the record's {} {} has changed", options.replay, option, path));
      }
    };
    take_file(condition(run, "input"), "--input", options.input);
    const Json recorded_files = condition(run, "files");
    for (const FileOption& option : spec.file_options) {
      take_file(condition(recorded_files, option.name.c_str()), option.name, options.files[option.name]);
    }
  } catch (const Json::exception&) {
    throw BadInput(fmt::format("--replay {}: the record lacks a field that a replay needs", options.replay));
  }
  return record;
}

std::vector<std::vector<Case>> cases_of_task(const Json& task) {
  std::vector<std::vector<Case>> groups;
  for (const Json& group : task.at("groups")) {
    std::vector<Case>& cases = groups.emplace_back();
    for (const Json& config : group) cases.push_back(Case::from_json(config));
  }
  return groups;
}

/// Reads the task of a part, and sets the options that the task gives.
Json read_task(Options& options) {
  std::vector<std::string> problems;
  const std::vector<Json> records = read_records(options.part, problems);
  if (records.size() != 1) throw BadInput(fmt::format("--part {}: holds no task", options.part));
  const Json& task = records.front();
  try {
    options.part_number = task.at("part");
    options.parts = task.at("parts");
    options.budget_s = task.at("budget_s").get<double>();
    (void)cases_of_task(task);
  } catch (const std::exception& error) {
    throw BadInput(fmt::format("--part {}: holds no task: {}", options.part, error.what()));
  }
  return task;
}

std::vector<std::vector<Case>> replayed_cases(const Json& record, const ExperimentSpec& spec) {
  const auto case_of = [&](const Json& json) { return in_order(Case::from_json(json), spec.axes); };
  if (!is_finding(record)) return {{case_of(record.at("case"))}};
  std::vector<Case> cases;
  for (const Json& config : record.at("data").at("cases")) cases.push_back(case_of(config));
  return group(cases, spec.compared_axes);
}

}  // namespace

Experiment::State::State(Experiment& owner, ExperimentSpec experiment, Options given)
    : lab(owner),
      spec(std::move(experiment)),
      make_apart(spec.make),
      options(std::move(given)),
      progress(options.quiet) {
  if (!options.part.empty()) part = read_task(options);
  if (!options.replay.empty()) replayed = find_replayed(options, spec);
  require_sources();
  device = options.open_device(options.device);
  if (options.threadgroup_memory_bytes) device->limit_threadgroup_memory(*options.threadgroup_memory_bytes);
  if (spec.claims) claims = spec.claims(device->info());
  hypotheses = attn::hypotheses(claims);
  pipelines = std::make_unique<PipelineCache>(*device, PipelineCache::default_folder());

  // The cases are selected before any file is hashed: the selection refuses paths that are no regular file, and hashing
  // a pipe might never end.
  groups = !part.is_null()      ? cases_of_task(part)
           : replayed.is_null() ? select_cases(spec, options, device->info())
                                : replayed_cases(replayed, spec);
  const std::string now = utc_now();
  std::vector<std::string> arguments = options.arguments;
  if (!arguments.empty()) arguments[0] = spec.name;  // records leave out the program's folder
  run = {{"id", new_run_id(now)},
         {"ts", now},
         {"argv", arguments},
         {"seed", options.seed},
         {"replay", replay_command()},
         {"profile", options.profile},
         {"device", device->info().spec},
         {"threadgroup_memory_bytes", nullptr},
         {"input", file_json("--input", options.input)},
         {"files", files_json(options.files)}};
  if (options.threadgroup_memory_bytes) run["threadgroup_memory_bytes"] = *options.threadgroup_memory_bytes;
  session = attn::session(source_root(), spec.source_folders);
  for (const FigureKind kind : {FigureKind::ratio, FigureKind::share, FigureKind::absolute}) {
    processes.spreads[kind] = spread_of(device_name(device->info()), spec.name, kind);
  }

  std::vector<Case> all;
  for (const auto& cases : groups) all.insert(all.end(), cases.begin(), cases.end());
  for (const Case& config : all) plan(config);  // throws for bad input before time is spent
  cases_left = all.size();
  asked_for = all.size() == 1 && (!options.input.empty() || !options.dump_output.empty());
  label_axes = varying_axes(all);
  if (!replayed.is_null()) {
    const std::string its_device = (is_finding(replayed) ? replayed.at("data") : replayed).at("device");
    if (its_device != device_name(device->info())) {
      progress.note(fmt::format("{}: the record is of {}; this run is on {}", spec.name, with_one_unit(its_device),
                                with_one_unit(device_name(device->info()))));
    }
  }
  if (options.shard_count > 1) return;  // another shard may have the value
  for (const std::string& sentence : unmet_values(options, groups))
    progress.note(fmt::format("{}: {}", spec.name, sentence));
}

bool Experiment::State::replays_measurement() const { return !replayed.is_null() && !is_finding(replayed); }

bool Experiment::State::replays_finding() const { return is_finding(replayed); }

const CasePlan& Experiment::State::plan(const Case& config) {
  const std::string key = config.key();
  const auto known = plans.find(key);
  return known != plans.end() ? known->second
                              : plans.emplace(key, spec.plan(config, {device->info(), options.files})).first->second;
}

/// The command line that repeats the run from the start, with the defaults of device, profile and seed written out. In
/// a replay of a finding the result is the command line of the finding's run.
std::string Experiment::State::replay_command() const {
  if (replays_finding()) return run_of(replayed).at("replay");
  std::vector<std::string> arguments = options.arguments;
  if (!arguments.empty()) arguments[0] = spec.name;
  std::erase(arguments, "--resume");
  const auto add = [&](const std::string& option, const std::string& value) {
    const bool named = std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
      return argument == option || argument.starts_with(option + "=");
    });
    if (!named) arguments.insert(arguments.end(), {option, value});
  };
  add("--device", device->info().spec);
  add("--profile", options.profile);
  add("--seed", std::to_string(options.seed));
  return shell_command(arguments);
}

void Experiment::State::open_records() {
  if (!part.is_null()) {
    part_file.emplace(part.at("results").get<std::string>());
    part_activity.emplace(part.at("activity").get<std::string>());
    progress.add(cases_left);
    return;
  }
  measurement_file.emplace(options.measurements_path);
  finding_file.emplace(options.findings_path);
  if (options.worker) store_lost();
  if (options.resume) resume();
  note_cases({});
  progress.add(cases_left);
  // The runs that scripts/run_all starts need no note: they all have --resume, and each rank's run has its --shard.
  const int ranks = options.resume || options.shard_count > 1 || !options.replay.empty() ? 1 : ranks_started_here();
  if (ranks > 1) {
    progress.note(
        fmt::format("{}: each of the {} ranks measures everything; start scripts/run_all under the launcher, "
                    "or give each rank its part with --shard I/{}",
                    spec.name, ranks, ranks));
  }
  if (options.quiet || options.only_verify || cases_left == 0) return;
  progress.note(fmt::format("cases to measure: {}, on {}, in at most about {}", cases_left,
                            with_one_unit(device_name(device->info())),
                            format_duration(options.budget(device->info()))));
}

std::vector<std::string> Experiment::State::resuming() const {
  std::vector<std::string> arguments = options.arguments;
  if (!options.resume && options.replay.empty()) arguments.emplace_back("--resume");
  return arguments;
}

Activity* Experiment::State::activity() {
  return part_activity ? &*part_activity : options.worker ? &options.worker->activity : nullptr;
}

double Experiment::State::most_silent_s() const {
  constexpr double with_users_code_s = 120;  // more than CompilationLimit::most_s
  return (has_files(options.files) ? std::min(with_users_code_s, spec.most_silent_s) : spec.most_silent_s) +
         options.max_launch_s;
}

void Experiment::State::progressed() {
  if (Activity* const shared = activity()) shared->progress();
}

void Experiment::State::note_cases(const std::vector<Case>& cases) {
  progressed();
  if (!options.worker) return;
  Json notes = {{"run", run["id"]}, {"resumed", options.resume}, {"cases", Json::array()}};
  for (const Case& config : cases) notes["cases"].push_back(config.json());
  const bool goes_on = options.replay.empty() && std::filesystem::is_regular_file(options.measurements_path);
  if (goes_on) notes["resume"] = resuming();
  notes["users_code"] = device->info().on_host && has_files(options.files);
  std::string texts;
  for (const auto& [option, path] : options.files) {
    if (!path.empty()) texts += fmt::format(" {} {}", option, path);
  }
  if (cases.empty() && results.empty() && !texts.empty()) {
    notes["doing"] = "while it compiled" + texts;
    notes["status"] = 2;
    notes.erase("resume");
  }
  options.worker->activity.note(notes);
  options.worker->activity.end_if_silent_for(most_silent_s());
}

void Experiment::State::at_case(int number) {
  if (Activity* const shared = activity()) shared->at(number);
}

void Experiment::State::store_lost() {
  const Before& before = options.worker->before;
  if (!before.run_id.empty()) run["id"] = before.run_id;
  if (before.lost.is_null()) return;
  Measurement record = new_trial(Case::from_json(before.lost)).record;
  fail(record, before.status, device_lost + before.reason);
  progress.note(record.reason + "; the run goes on in a new process");
  const size_t left = cases_left;
  progress.add(1);
  store(std::move(record));
  // Without the record, this worker would run the case again.
  if (!can_go_on()) throw std::runtime_error("the run cannot go on without the record of this case");
  results.clear();  // resume() takes the record over
  cases_left = left;
}

void Experiment::State::note_problems(const std::string& path, const std::vector<std::string>& problems) {
  constexpr size_t most = 5;  // a file without records may have thousands of bad lines
  for (size_t i = 0; i < std::min(most, problems.size()); ++i) progress.note(path + ": " + problems[i]);
  if (problems.size() > most) progress.note(fmt::format("{}: and {} more bad lines", path, problems.size() - most));
}

/// Takes over the records of an earlier run with the same code and conditions, and the id of that run.
void Experiment::State::resume() {
  std::vector<std::string> problems;
  const auto records = read_records(options.measurements_path, problems);
  note_problems(options.measurements_path, problems);

  for (const Json& record : records) {
    try {
      if (record.at("schema") != "measurement/1" || record.at("experiment") != spec.name ||
          record.at("device") != device_name(device->info()) ||
          !std::all_of(std::begin(conditions), std::end(conditions),
                       [&](const char* field) { return condition(record.at("run"), field) == run[field]; })) {
        continue;
      }
      // If the user started this run without --resume, earlier runs in the file do not count.
      const Before* const before = options.worker ? &options.worker->before : nullptr;
      if (before && !before->run_id.empty() && !before->resumed && record.at("run_id") != before->run_id) continue;
      for (const char* field : session_fields) {
        const Json recorded = condition(record.at("run"), field);
        if (recorded != session[field]) throw OtherSession{field, recorded, session[field]};
      }
      Measurement measurement = measurement_from_json(record);
      run["id"] = measurement.run_id;
      recorded_before[in_order(measurement.config, spec.axes).key()] = std::move(measurement);
    } catch (const OtherSession& other) {
      throw BadInput(
          fmt::format("--resume: {} has a run with another {} ({}, now {}); start a new run without --resume",
                      options.measurements_path, other.field, other.recorded.dump(), other.now.dump()));
    } catch (const std::exception&) {
      progress.note(fmt::format("{}: record {} is damaged, skipped", options.measurements_path,
                                record.contains("id") ? record["id"].dump() : "without id"));
    }
  }

  std::erase_if(recorded_before, [&](const auto& entry) { return !is_done(entry.second); });
  for (auto& cases : groups) {
    cases_left -= std::erase_if(cases, [&](const Case& config) { return takes_over(config); });
  }
  std::erase_if(groups, [](const auto& cases) { return cases.empty(); });
  resume_findings();
  if (!options.quiet) {
    progress.note(fmt::format("resumed: cases recorded {}, left {}, pairs compared {}", results.size(), cases_left,
                              compared_before.size()));
  }
}

bool Experiment::State::takes_over(const Case& config) {
  const auto before = recorded_before.extract(in_order(config, spec.axes).key());
  if (before.empty()) return false;
  results.push_back(std::move(before.mapped()));
  results.back().config = config;  // the record's axes may have another order
  ++cases_resumed;
  return true;
}

void Experiment::State::resume_findings() {
  std::vector<std::string> problems;  // conclude() shows them
  const std::vector<Json> records = read_records(options.findings_path, problems);
  const bool same_arguments = std::ranges::any_of(records, [&](const Json& record) {
    return record.value("schema", "") == "run/1" && record.value("/run/id"_json_pointer, Json()) == run["id"] &&
           record.value("/run/replay"_json_pointer, Json()) == run["replay"];
  });
  for (const Json& finding : records) {
    if (!is_finding(finding)) continue;
    try {
      const Json& data = finding.at("data");
      const Json& its_run = data.at("run");
      if ((its_run.is_object() ? its_run.at("id") : its_run) != run["id"]) continue;
      std::set<std::string> ids;
      for (const Measurement& result : results) ids.insert(result.id);
      for (const auto& [key, record] : recorded_before) ids.insert(record.id);
      const Json& measurements = data.at("measurements");
      const bool current = std::all_of(measurements.begin(), measurements.end(),
                                       [&](const Json& id) { return ids.contains(id.get<std::string>()); });
      if (!current) continue;
      const std::optional<Comparison> pair = comparison_of(finding);
      const bool known = !pair || std::any_of(compared_before.begin(), compared_before.end(),
                                              [&](const Comparison& other) { return same_pair(other, *pair); });
      if (!known) compared_before.push_back(*pair);
      bool selected = true;
      for (const Json& its_case : data.at("cases")) {
        const Case config = Case::from_json(its_case);
        // An experiment may measure cases that no option selects, and a search may choose them.
        if (same_arguments) takes_over(config);
        selected = selected && std::ranges::find(results, config, &Measurement::config) != results.end();
      }
      if (selected) findings_before.push_back(finding);
    } catch (const std::exception&) {
      progress.note(fmt::format("{}: record {} is damaged, skipped", options.findings_path,
                                finding.contains("id") ? finding["id"].dump() : "without id"));
    }
  }
}

bool Experiment::State::judges(const Json& finding, const std::string& hypothesis, const std::vector<Case>& cases) {
  const Json& data = finding.at("data");
  return data.at("hypothesis").at("id") == hypothesis && std::ranges::all_of(cases, [&](const Case& config) {
           return std::ranges::any_of(data.at("cases"),
                                      [&](const Json& its_case) { return Case::from_json(its_case) == config; });
         });
}

bool Experiment::State::is_judged(const std::string& hypothesis, const std::vector<Case>& cases) const {
  return std::ranges::any_of(findings_before, [&](const Json& finding) { return judges(finding, hypothesis, cases); });
}

bool Experiment::State::is_judged(const Duel& pair, const std::vector<Duel>& asked) const {
  return std::ranges::all_of(asked, [&](const Duel& duel) {
    return !same_pair(duel, pair) || is_judged(duel.hypothesis, {pair.baseline, pair.contender});
  });
}

std::vector<Case> Experiment::State::cases_to_repeat() const {
  std::vector<Case> cases = cases_of_claims(claims, results);
  if (findings_before.empty()) return cases;
  std::vector<Case> needed;
  for (const Claim& claim : claims) {
    if (claim.compared || claim.exact || !claim.measured_again) continue;
    for (const Conclusion& conclusion : attn::conclude({claim}, results, {})) {
      const std::vector<Case> its_cases = cases_of(conclusion);
      if (!is_judged(conclusion.hypothesis, its_cases)) needed.insert(needed.end(), its_cases.begin(), its_cases.end());
    }
  }
  std::erase_if(cases, [&](const Case& config) { return std::ranges::find(needed, config) == needed.end(); });
  return cases;
}

void Experiment::State::note_if_complete() {
  const bool by_user = options.resume && (!options.worker || options.worker->before.run_id.empty());
  if (!by_user || options.quiet || measured_s > 0 || results.size() != cases_resumed || results.empty()) return;
  progress.note(
      fmt::format("{}: nothing is left to measure: the run {} is complete", spec.name, run["id"].get<std::string>()));
}

bool Experiment::State::is_done(const Measurement& record) {
  const bool lost = record.reason.starts_with(device_lost);
  if (record.status == "failed" && !lost) return false;
  if (record.reason == budget_spent) return false;
  // A case that was skipped because its launch was too long may be allowed now, by another --max-launch.
  if (record.status == "skipped" && !record.pipeline.is_null() && !record.reason.ends_with(launch_limit()))
    return false;
  const Timing* timing = record.main_timing();
  if (timing ? timing->stop == "interrupted" : record.status == "ok" && !options.only_verify) return false;
  const Plan& today = plan(record.config);
  if (record.pipeline.is_null()) {
    // The record of a case that ended its process names no kernels. The record is of the same session, so the kernels
    // have not changed since.
    return lost || (record.status == "skipped" && record.reason == skip_reason(today, device->info()));
  }
  return is_current(record, today);
}

bool Experiment::State::is_current(const Measurement& record, const Plan& plan) {
  const std::vector<Json> kernels = record.kernels();
  return std::equal(kernels.begin(), kernels.end(), plan.launches.begin(), plan.launches.end(),
                    [&](const Json& recorded, const Launch& launch) {
                      const auto [hash, added] = source_hashes.try_emplace(launch.source);
                      if (added) hash->second = source_sha256(launch.source);
                      return recorded.value("key", "") == launch.source.key() &&
                             recorded.value("source_sha256", "") == hash->second;
                    });
}

}  // namespace attn
