#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "common/experiment/environment.h"
#include "common/experiment/state.h"

namespace attn {

std::vector<Case> Experiment::State::cases_of(const Conclusion& conclusion) const {
  std::vector<Case> cases;
  const auto add = [&](const Case& config) {
    if (std::find(cases.begin(), cases.end(), config) == cases.end()) cases.push_back(config);
  };
  const auto& ids = conclusion.measurements;
  for (const Measurement& result : results) {
    if (std::find(ids.begin(), ids.end(), result.id) != ids.end()) add(result.config);
  }
  if (conclusion.compare) {
    add(conclusion.compare->baseline);
    add(conclusion.compare->contender);
  }
  return cases;
}

Json Experiment::State::code_of(const Case& config) const {
  Json code = Json::array();
  const auto result = std::ranges::find(results, config, &Measurement::config);
  if (result == results.end()) return code;
  for (const Json& pipeline : result->kernels()) code.push_back(code_identity(pipeline));
  return code;
}

Json Experiment::State::environment() {
  return {{"device", device->info().json()},
          {"ceilings", measured_ceilings().json()},
          {"flush_selftest", flush_test ? Json(flush_test->json()) : Json(nullptr)},
          {"host_compiler", host_compiler()},
          {"git", git_state(source_root())}};
}

Json Experiment::State::header() {
  Json header = {{"schema", "run/1"}, {"id", ""},           {"experiment", spec.name},
                 {"run", run},        {"session", session}, {"env", environment()}};
  header["id"] = record_id(header);
  return header;
}

Json Experiment::State::find(const Conclusion& conclusion, const std::vector<Json>& known) {
  const auto hypothesis = std::find_if(hypotheses.begin(), hypotheses.end(), [&](const Hypothesis& candidate) {
    return candidate.id == conclusion.hypothesis;
  });
  if (hypothesis == hypotheses.end()) {
    throw std::logic_error("a conclusion about '" + conclusion.hypothesis + "', which is no registered hypothesis");
  }
  const std::string where = device_name(device->info()), run_id = run["id"];
  Json finding = make_finding(spec.name, where, *hypothesis, conclusion, run_id);
  Json cases = Json::array(), code = Json::array();
  for (const Case& config : cases_of(conclusion)) {
    cases.push_back(config.json());
    code.push_back(code_of(config));
  }
  finding["data"]["cases"] = cases;
  finding["data"]["code"] = code;
  finding["id"] = record_id(finding);
  const bool recorded = std::ranges::any_of(known, [&](const Json& other) {
    return other.value("claim_key", Json()) == finding["claim_key"] &&
           other.value("/data/run"_json_pointer, Json()) == run_id;
  });
  if (!recorded) {
    emit_finding(*finding_file, finding);
    print_json(finding);
  }
  return finding;
}

bool Experiment::State::in_replay(const Conclusion& conclusion) const {
  return !replays_finding() || (replayed.at("data").at("hypothesis").at("id") == conclusion.hypothesis &&
                                replayed.at("data").at("subject") == conclusion.subject &&
                                replayed.at("data").at("device") == device_name(device->info()));
}

int Experiment::State::exit_status() const {
  const bool bad = std::any_of(results.begin(), results.end(), [](const Measurement& result) {
    return result.status != "ok" && result.status != "skipped";
  });
  return bad ? 1 : 0;
}

std::optional<std::string> Experiment::State::nothing_ran() const {
  std::map<std::string, int> reasons;
  for (const Measurement& result : results) {
    if (result.status != "skipped" || result.reason == budget_spent) return {};
    ++reasons[result.reason];
  }
  if (results.size() == cases_resumed) return {};  // there was nothing left to do
  const auto commonest = std::ranges::max_element(reasons, {}, [](const auto& reason) { return reason.second; });
  return fmt::format("none of {} cases can run here; {} of them: {}", results.size(), commonest->second,
                     commonest->first);
}

int Experiment::State::conclude(const std::vector<Conclusion>& conclusions) {
  progress.clear();
  std::string verdicts;
  if (!options.only_verify) {
    raise_ceilings();  // now that the device is warm
    std::vector<std::string> problems;
    const std::vector<Json> known = read_records(options.findings_path, problems);
    for (const std::string& problem : problems) progress.note(options.findings_path + ": " + problem);
    const bool has_header = std::ranges::any_of(known, [&](const Json& record) {
      return record.value("schema", "") == "run/1" && record.value("/run/id"_json_pointer, Json()) == run["id"];
    });
    std::set<std::string> judged;
    int decided = 0;
    double wrong = 0;  // the expected number of wrong verdicts
    for (const Conclusion& conclusion : conclusions) {
      if (conclusion.measurements.empty() || !in_replay(conclusion)) continue;
      if (judged.empty() && !has_header) finding_file->append(header());
      const Json finding = find(conclusion, known);
      judged.insert(conclusion.hypothesis);
      verdicts += verdict_text(finding);
      if (finding["data"]["verdict"]["state"] != name(attn::State::inconclusive) && finding["confidence"].is_number()) {
        ++decided;
        wrong += 1 - finding["confidence"].get<double>();
      }
      if (!replays_finding()) continue;
      const bool agrees = finding["data"]["verdict"]["state"] == replayed["data"]["verdict"]["state"];
      verdicts +=
          fmt::format("{:<12} {} the finding {} that is replayed, which was {}\n", agrees ? "AGREES" : "DIFFERS",
                      agrees ? "with" : "from", replayed["id"].get<std::string>(),
                      replayed["data"]["verdict"]["state"].get<std::string>());
    }
    std::string silent;
    for (const Hypothesis& hypothesis : hypotheses) {
      const bool asked = !replays_finding() || replayed["data"]["hypothesis"]["id"] == hypothesis.id;
      if (asked && !judged.contains(hypothesis.id)) silent += (silent.empty() ? "" : ", ") + hypothesis.id;
    }
    if (decided > 0) verdicts += fmt::format("Of {} verdicts {:.1f} are expected to be wrong.\n", decided, wrong);
    if (!silent.empty()) verdicts += fmt::format("{:<12} {}: these cases do not decide it\n", "NOT JUDGED", silent);
  }
  if (!options.json) {
    fmt::print("{}", table(results, ceilings.value_or(Ceilings{})));
    if (!verdicts.empty()) fmt::print("\n{}", verdicts);
    fmt::print("\nmeasurements: {}  findings: {}\n", options.measurements_path, options.findings_path);
  }
  if (const auto reason = replayed.is_null() ? nothing_ran() : std::nullopt) {
    progress.note(fmt::format("{}: {}", spec.name, *reason));
    return 4;
  }
  return exit_status();
}

int Experiment::State::replay_measurement() {
  const Measurement old = measurement_from_json(replayed);
  lab.measure(lab.verify({old.config}));
  const Measurement& now = results.back();
  const Timing* before = old.main_timing();
  const Timing* after = now.main_timing();
  const bool both = before && after;
  const bool agrees = both ? before->ci_lo_s <= after->ci_hi_s && after->ci_lo_s <= before->ci_hi_s
                           : !before && !after && old.status == now.status;
  progress.clear();
  print_json({{"replay", old.id}, {"measurement", now.id}, {"agrees", agrees}});
  if (!options.json) {
    const auto print_line = [](const char* when, const Measurement& record, const Timing* timing) {
      fmt::print("{:<9} {}  {} {}\n", when, record.id, record.status,
                 timing ? format_interval(*timing) : record.reason);
    };
    fmt::print("{}\n", old.config.key());
    print_line("recorded", old, before);
    print_line("now", now, after);
    const std::string why = both ? fmt::format("now {:.3f} of the recorded median, the intervals {}overlap",
                                               after->median_s / before->median_s, agrees ? "" : "do not ")
                                 : fmt::format("recorded {}, now {}", old.status, now.status);
    fmt::print("{}: {}\n", agrees ? "AGREES" : "DIFFERS", why);
  }
  return exit_status();
}

}  // namespace attn
