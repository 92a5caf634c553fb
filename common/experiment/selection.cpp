#include "common/experiment/selection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>
#include <utility>

#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/base/shell.h"
#include "common/base/text_table.h"
#include "common/base/version.h"
#include "common/experiment/environment.h"
#include "common/records/recorded.h"

namespace attn {
namespace {

/// A condition of a record's run; null if the record was written before this condition existed.
Json condition(const Json& run, const char* name) { return run.contains(name) ? run[name] : Json(nullptr); }

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

/// The command line that repeats the run from the start, with the defaults of device, profile and seed written out. In
/// a replay of a finding the result is the command line of the finding's run.
std::string replay_command(const Given& given, const Json& replayed) {
  if (is_finding(replayed)) return run_of(replayed).at("replay");
  std::vector<std::string> arguments = given.options.arguments;
  if (!arguments.empty()) arguments[0] = given.spec.name;
  std::erase(arguments, "--resume");
  const auto add = [&](const std::string& option, const std::string& value) {
    const bool named = std::ranges::any_of(arguments, [&](const std::string& argument) {
      return argument == option || argument.starts_with(option + "=");
    });
    if (!named) arguments.insert(arguments.end(), {option, value});
  };
  add("--device", given.info.spec);
  add("--profile", given.options.profile);
  add("--seed", std::to_string(given.options.seed));
  return shell_command(arguments);
}

std::vector<std::vector<Case>> replayed_cases(const Json& record, const ExperimentSpec& spec) {
  const auto case_of = [&](const Json& json) { return in_order(Case::from_json(json), spec.axes); };
  if (!is_finding(record)) return {{case_of(record.at("case"))}};
  std::vector<Case> cases;
  for (const Json& config : record.at("data").at("cases")) cases.push_back(case_of(config));
  return group(cases, spec.compared_axes);
}

/// Whether a finding judges this hypothesis on these cases, and maybe on others.
bool judges(const Json& finding, const std::string& hypothesis, const std::vector<Case>& cases) {
  const Json& data = finding.at("data");
  return data.at("hypothesis").at("id") == hypothesis && std::ranges::all_of(cases, [&](const Case& config) {
           return std::ranges::any_of(data.at("cases"),
                                      [&](const Json& its_case) { return Case::from_json(its_case) == config; });
         });
}

}  // namespace

const CasePlan& Plans::operator()(const Case& config) {
  const std::string key = config.key();
  const auto known = plans_.find(key);
  return known != plans_.end() ? known->second : plans_.emplace(key, spec_.plan(config, setting_)).first->second;
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.{}f} ms", 1e3 * seconds, seconds < 9.5e-3 ? seconds < 9.5e-6 ? 4 : 2 : 0);
}

std::string launch_limit(const Options& options) {
  return fmt::format("at most {} are allowed", milliseconds(options.max_launch_s));
}

std::vector<Case> cases_of(const Conclusion& conclusion, const std::vector<Measurement>& results) {
  std::vector<Case> cases;
  const auto add = [&](const Case& config) {
    if (std::ranges::find(cases, config) == cases.end()) cases.push_back(config);
  };
  for (const Measurement& result : results) {
    if (std::ranges::count(conclusion.measurements, result.id) > 0) add(result.config);
  }
  if (conclusion.compare) {
    add(conclusion.compare->baseline);
    add(conclusion.compare->contender);
  }
  return cases;
}

void take_conditions(Options& options, const ExperimentSpec& spec, const Json& run) {
  options.device = run.at("device");
  options.seed = run.at("seed");
  options.profile = run.at("profile");
  if (const Json& bytes = run.at("threadgroup_memory_bytes"); !bytes.is_null()) {
    options.threadgroup_memory_bytes = bytes.get<size_t>();
  }
  const auto take_file = [&](const Json& recorded, const std::string& option, std::string& path) {
    if (recorded.is_null()) return;
    path = recorded.at("path");
    if (file_json(option, path) != recorded)
      throw BadInput(fmt::format("the record's {} {} has changed", option, path));
  };
  take_file(condition(run, "input"), "--input", options.input);
  const Json files = condition(run, "files");
  for (const FileOption& option : spec.file_options) {
    take_file(condition(files, option.name.c_str()), option.name, options.files[option.name]);
  }
}

Json find_replayed(Options& options, const ExperimentSpec& spec) {
  if (options.replay.empty()) return nullptr;
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
    take_conditions(options, spec, run_of(record));
  } catch (const Json::exception&) {
    throw BadInput(fmt::format("--replay {}: the record lacks a field that a replay needs", options.replay));
  }
  return record;
}

Json new_run(const Given& given, const Json& replayed) {
  const std::string now = utc_now();
  std::vector<std::string> arguments = given.options.arguments;
  if (!arguments.empty()) arguments[0] = given.spec.name;  // records leave out the program's folder
  const auto& bytes = given.options.threadgroup_memory_bytes;
  return {{"id", new_run_id(now)},
          {"ts", now},
          {"argv", arguments},
          {"seed", given.options.seed},
          {"replay", replay_command(given, replayed)},
          {"profile", given.options.profile},
          {"device", given.info.spec},
          {"threadgroup_memory_bytes", bytes ? Json(*bytes) : Json()},
          {"input", file_json("--input", given.options.input)},
          {"files", files_json(given.options.files)}};
}

Selection::Selection(const Given& given, Plans& plans, Json replayed)
    : given_(given),
      plans_(plans),
      replayed_(std::move(replayed)),
      groups_(replays() ? replayed_cases(replayed_, given.spec) : select_cases(given.spec, given.options, given.info)) {
  for (const Case& config : cases()) plans_(config);
}

std::vector<Case> Selection::cases() const {
  std::vector<Case> all;
  for (const auto& cases : groups_) all.insert(all.end(), cases.begin(), cases.end());
  return all;
}

bool Selection::replays_finding() const { return is_finding(replayed_); }

std::vector<Duel> Selection::replayed_duels() const {
  const Json& data = replayed_.at("data");
  const Json& compare = data.at("compare");
  if (compare.is_null()) return {};
  return {{data.at("hypothesis").at("id"), Case::from_json(compare.at("baseline")),
           Case::from_json(compare.at("contender"))}};
}

bool Selection::wants(const std::string& hypothesis, const std::optional<std::string>& subject) const {
  if (!replays()) return true;
  if (!replays_finding()) return false;
  const Json& data = replayed_.at("data");
  return data.at("hypothesis").at("id") == hypothesis && (!subject || data.at("subject") == *subject);
}

void Selection::resume(Recorder& recorder) {
  const std::string& path = given_.options.measurements_path;
  std::vector<std::string> problems;
  const auto records = read_records(path, problems);
  recorder.tell_problems(path, problems);
  std::string other_session;
  for (const Json& record : records) {
    try {
      const Json& its_run = record.at("run");
      if (record.at("schema") != "measurement/1" || record.at("experiment") != given_.spec.name ||
          record.at("device") != device_name(given_.info) || std::ranges::any_of(conditions, [&](const char* field) {
            return condition(its_run, field) != recorder.run()[field];
          })) {
        continue;
      }
      for (const char* field : session_fields) {
        const Json recorded = condition(its_run, field), now = recorder.session()[field];
        if (recorded != now) other_session = fmt::format("{} ({}, now {})", field, recorded.dump(), now.dump());
      }
      Measurement measurement = measurement_from_json(record);
      recorder.go_on(measurement.run_id);
      recorded_before_[in_order(measurement.config, given_.spec.axes).key()] = std::move(measurement);
    } catch (const std::exception&) {
      recorder.tell_damaged(path, record);
    }
  }
  if (!other_session.empty()) {
    throw BadInput(
        fmt::format("--resume: {} has a run with another {}; start a new run without --resume", path, other_session));
  }

  std::erase_if(recorded_before_, [&](const auto& entry) { return !is_done(entry.second); });
  for (auto& cases : groups_) {
    std::erase_if(cases, [&](const Case& config) { return take_over(recorder, config); });
  }
  std::erase_if(groups_, [](const auto& cases) { return cases.empty(); });
  resume_findings(recorder);
  if (!given_.options.quiet) {
    recorder.progress().note(fmt::format("resumed: cases recorded {}, left {}, pairs compared {}",
                                         recorder.results().size(), cases().size(), compared_before_.size()));
  }
}

bool Selection::take_over(Recorder& recorder, const Case& config) {
  auto before = recorded_before_.extract(in_order(config, given_.spec.axes).key());
  if (before.empty()) return false;
  before.mapped().config = config;  // the record's axes may have another order
  recorder.take_over(std::move(before.mapped()));
  return true;
}

void Selection::resume_findings(Recorder& recorder) {
  std::vector<std::string> problems;  // the judge shows them
  const std::vector<Json> records = read_records(given_.options.findings_path, problems);
  const Json& run = recorder.run();
  const bool same_arguments = std::ranges::any_of(records, [&](const Json& record) {
    return record.value("schema", "") == "run/1" && record.value("/run/id"_json_pointer, Json()) == run["id"] &&
           record.value("/run/replay"_json_pointer, Json()) == run["replay"];
  });
  for (const Json& finding : records) {
    if (!is_finding(finding)) continue;
    try {
      const Json& data = finding.at("data");
      if (data.at("run") != run["id"]) continue;
      std::set<std::string> ids;
      for (const Measurement& result : recorder.results()) ids.insert(result.id);
      for (const auto& [key, record] : recorded_before_) ids.insert(record.id);
      const bool current = std::ranges::all_of(data.at("measurements"),
                                               [&](const Json& id) { return ids.contains(id.get<std::string>()); });
      if (!current) continue;
      if (const std::optional<Comparison> pair = comparison_of(finding)) {
        if (!compared_before({{}, pair->baseline, pair->contender})) compared_before_.push_back(*pair);
      }
      bool selected = true;
      for (const Json& its_case : data.at("cases")) {
        const Case config = Case::from_json(its_case);
        // An experiment may measure cases that no option selects, and a search may choose them.
        if (same_arguments) take_over(recorder, config);
        selected = selected && recorder.has(config);
      }
      if (selected) findings_before_.push_back(finding);
    } catch (const std::exception&) {
      recorder.tell_damaged(given_.options.findings_path, finding);
    }
  }
}

bool Selection::is_judged(const std::string& hypothesis, const std::vector<Case>& cases) const {
  return std::ranges::any_of(findings_before_, [&](const Json& finding) { return judges(finding, hypothesis, cases); });
}

bool Selection::is_judged(const Duel& pair, const std::vector<Duel>& asked) const {
  return std::ranges::all_of(asked, [&](const Duel& duel) {
    return !same_pair(duel, pair) || is_judged(duel.hypothesis, {pair.baseline, pair.contender});
  });
}

bool Selection::is_part_of_judged(const Conclusion& conclusion, const std::vector<Measurement>& results) const {
  const std::vector<Case> cases = cases_of(conclusion, results);
  return std::ranges::any_of(findings_before_, [&](const Json& finding) {
    return judges(finding, conclusion.hypothesis, cases) && finding.at("data").at("cases").size() > cases.size();
  });
}

const Comparison* Selection::compared_before(const Duel& pair) const {
  const auto found =
      std::ranges::find_if(compared_before_, [&](const Comparison& known) { return same_pair(known, pair); });
  return found == compared_before_.end() ? nullptr : &*found;
}

std::vector<Case> Selection::cases_to_repeat(const std::vector<Claim>& claims,
                                             const std::vector<Measurement>& results) const {
  std::vector<Case> cases = cases_of_claims(claims, results);
  if (findings_before_.empty()) return cases;
  std::vector<Case> needed;
  for (const Claim& claim : claims) {
    if (claim.compared || claim.exact || !claim.measured_again) continue;
    for (const Conclusion& conclusion : attn::conclude({claim}, results, {})) {
      const std::vector<Case> its_cases = cases_of(conclusion, results);
      if (!is_judged(conclusion.hypothesis, its_cases)) needed.insert(needed.end(), its_cases.begin(), its_cases.end());
    }
  }
  std::erase_if(cases, [&](const Case& config) { return std::ranges::find(needed, config) == needed.end(); });
  return cases;
}

bool Selection::is_done(const Measurement& record) {
  const bool lost = record.reason.starts_with(device_lost);
  if (record.status == "failed" && !lost) return false;
  if (record.reason == budget_spent) return false;
  // A case that was skipped because its launch was too long may be allowed now, by another --max-launch.
  if (record.status == "skipped" && !record.pipeline.is_null() &&
      !record.reason.ends_with(launch_limit(given_.options)))
    return false;
  const Timing* timing = record.main_timing();
  if (timing ? timing->stop == "interrupted" : record.status == "ok" && !given_.options.only_verify) return false;
  const Plan& today = plans_(record.config);
  if (record.pipeline.is_null()) {
    // The record of a case that ended its process names no kernels. The record is of the same session, so the kernels
    // have not changed since.
    return lost || (record.status == "skipped" && record.reason == skip_reason(today, given_.info));
  }
  return is_current(record, today);
}

bool Selection::is_current(const Measurement& record, const Plan& plan) {
  const std::vector<Json> kernels = record.kernels();
  return std::equal(kernels.begin(), kernels.end(), plan.launches.begin(), plan.launches.end(),
                    [&](const Json& recorded, const Launch& launch) {
                      const auto [hash, added] = source_hashes_.try_emplace(launch.source);
                      if (added) hash->second = source_sha256(launch.source);
                      return recorded.value("key", "") == launch.source.key() &&
                             recorded.value("source_sha256", "") == hash->second;
                    });
}

}  // namespace attn
