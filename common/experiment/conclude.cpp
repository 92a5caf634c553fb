#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/attention/tuning.h"
#include "common/base/shell.h"
#include "common/base/standard_streams.h"
#include "common/base/text_table.h"
#include "common/base/version.h"
#include "common/experiment/environment.h"
#include "common/experiment/state.h"

namespace attn {
namespace {

/// The shortest unambiguous prefix of `id`, of at least min_replay_digits digits.
std::string short_id(const std::string& id, const std::vector<Measurement>& results) {
  size_t digits = std::min(min_replay_digits, id.size());
  const auto ambiguous = [&] {
    return std::ranges::count_if(
               results, [&](const Measurement& result) { return result.id.starts_with(id.substr(0, digits)); }) > 1;
  };
  while (digits < id.size() && ambiguous()) ++digits;
  return id.substr(0, digits);
}

}  // namespace

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
  for (const Json& pipeline : result->kernels()) code.push_back(pipeline.at("code_sha256"));
  return code;
}

Json Experiment::State::environment() {
  return {{"device", device->info().json()},
          {"ceilings", measured_ceilings().json()},
          {"flush_selftest", flush_test ? Json(flush_test->json()) : Json(nullptr)},
          {"version", version()},
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
  const auto recorded = std::ranges::find_if(known, [&](const Json& other) {
    return other.value("claim_key", Json()) == finding["claim_key"] &&
           other.value("/data/run"_json_pointer, Json()) == run_id;
  });
  if (recorded != known.end()) return *recorded;
  keep([&] { emit_finding(*finding_file, finding); });
  print_json(finding);
  return finding;
}

bool Experiment::State::is_part_of_judged(const Conclusion& conclusion) const {
  const std::vector<Case> cases = cases_of(conclusion);
  return std::ranges::any_of(findings_before, [&](const Json& finding) {
    return judges(finding, conclusion.hypothesis, cases) && finding.at("data").at("cases").size() > cases.size();
  });
}

bool Experiment::State::in_replay(const Conclusion& conclusion) const {
  return !replays_finding() || (replayed.at("data").at("hypothesis").at("id") == conclusion.hypothesis &&
                                replayed.at("data").at("subject") == conclusion.subject);
}

Json Experiment::State::answer_json(const std::vector<Json>& findings) {
  const std::string where = device_name(device->info());
  const bool whole = options.axes.empty() && options.input.empty() && options.shard_count == 1 && replayed.is_null() &&
                     !has_files(options.files);
  AnswerInput input = {.spec = spec.answer,
                       .claims = claims,
                       .device = where,
                       .results = results,
                       .comparisons = comparisons,
                       .findings = findings,
                       .known = known_of(ATTN_POOLED_CLAIMS, spec.name, where),
                       .whole_sweep = whole && !options.only_verify,
                       .complete = [&](Case& config) {
                         if (spec.complete) spec.complete(config, device->info());
                       }};
  input.known.tuning = tuning(device->info());
  Json found = {{"schema", "answer/1"}, {"experiment", spec.name}, {"run", run["id"]}};
  try {
    found.update(answer(input));
  } catch (const Json::exception& error) {
    progress.note(
        fmt::format("{} or a file of findings/tuning is of another version: {}", ATTN_POOLED_CLAIMS, error.what()));
    input.known = {};
    found.update(answer(input));
  }
  found["warnings"] = disturbances(device->info(), results, comparisons, started.cores, others(started, core_times()));
  found["measurements"] = options.measurements_path;
  found["findings"] = options.findings_path;
  return found;
}

std::string Experiment::State::table_text() const {
  const TableOptions shown = {options.all_columns, output_width(),
                              spec.answer.alternatives.empty() ? spec.compared_axes : spec.answer.alternatives,
                              options.baseline, options.filter};
  const Ceilings known = ceilings.value_or(Ceilings{});
  return options.csv ? csv(results, shown) : table(results, known, shown);
}

std::string Experiment::State::end_text(const Json& answer, const std::string& verdicts) const {
  const size_t width = output_width();
  std::string text = "\n";
  std::istringstream lines(verdicts);
  for (std::string line; std::getline(lines, line);) text += wrapped(line, width, 13);
  if (!verdicts.empty()) text += "\n";
  for (const Json& warning : answer.at("warnings")) text += wrapped("WARNING " + warning.get<std::string>(), width, 2);
  if (!options.only_verify && !replays_finding()) {
    const size_t records = answer.at("records");
    text += wrapped(
        fmt::format("ANSWER for {}, {}", answer.at("device").get<std::string>(),
                    records > 0 ? fmt::format("by this run and {} recorded figures", records) : "by this run alone"),
        width, 2);
  }
  const std::string above = std::exchange(text, {});
  std::vector<std::string> counts;
  for (const auto& [status, count] : answer.at("counts").items())
    counts.push_back(fmt::format("{} {}", count.get<int>(), status));
  text += wrapped(fmt::format("{}", fmt::join(counts, ", ")), width, 2);
  text += wrapped(fmt::format("records: {} {}", options.measurements_path, options.findings_path), width, 2);
  const std::filesystem::path report = std::filesystem::path(source_root()) / "scripts/report";
  if (std::filesystem::exists(report)) {  // the script is missing where only the programs are installed
    text += labelled_command(
        "report:  ", {std::filesystem::proximate(report).string(), options.measurements_path, options.findings_path},
        width);
  }
  const auto last = std::ranges::find(results, "ok", &Measurement::status);
  const std::string id = !answer.at("choices").empty() ? answer["choices"][0]["measurement"].get<std::string>()
                         : last != results.end()       ? last->id
                                                       : std::string();
  if (!id.empty()) {
    std::vector<std::string> words = {options.arguments.front()};
    if (options.measurements_path != Options().measurements_path) {
      words.insert(words.end(), {"--measurements", options.measurements_path});
    }
    if (options.findings_path != Options().findings_path) words.insert(words.end(), {"--out", options.findings_path});
    words.insert(words.end(), {"--replay", short_id(id, results)});
    text += labelled_command("replay:  ", words, width);
  }
  if (options.only_verify || replays_finding()) return above + text;
  constexpr size_t screen = 24, fewest = 6;  // lines
  const auto taken = static_cast<size_t>(std::ranges::count(above + text, '\n')) + 1;
  return above + answer_text(answer, width, std::max(fewest, screen - std::min(screen, taken))) + "\n" + text;
}

int Experiment::State::exit_status() const {
  const bool bad = std::any_of(results.begin(), results.end(), [](const Measurement& result) {
    return result.status != "ok" && result.status != "skipped";
  });
  return bad || unwritten || part_failed ? 1 : 0;
}

std::optional<std::string> Experiment::State::nothing_ran() const {
  std::map<std::string, int> reasons;
  for (const Measurement& result : results) {
    if (result.status != "skipped" || result.reason == budget_spent) return {};
    ++reasons[result.reason];
  }
  if (results.size() == cases_resumed) return {};  // there was nothing left to do
  if (results.size() == 1) return "the case cannot run here: " + results[0].reason;
  const auto commonest = std::ranges::max_element(reasons, {}, [](const auto& reason) { return reason.second; });
  return fmt::format("none of {} cases can run here; the reason of {} of these cases: {}", results.size(),
                     commonest->second, commonest->first);
}

int Experiment::State::conclude(const std::vector<Conclusion>& conclusions) {
  progress.clear();
  if (options.baseline && std::ranges::none_of(results, [&](const Measurement& result) {
        return result.main_timing() && has_value(result.config, *options.baseline);
      })) {
    progress.note(fmt::format("{}: --baseline {}={}: no measured case of this run has this value", spec.name,
                              options.baseline->name, to_string(options.baseline->values.front())));
  }
  std::string verdicts;
  std::vector<Json> findings;
  if (!options.only_verify) {
    std::vector<std::string> problems;
    const std::vector<Json> known = read_records(options.findings_path, problems);
    note_problems(options.findings_path, problems);
    const bool has_header = std::ranges::any_of(known, [&](const Json& record) {
      return record.value("schema", "") == "run/1" && record.value("/run/id"_json_pointer, Json()) == run["id"];
    });
    if (measured_s > 0) raise_ceilings();  // now that the device is warm
    for (const Conclusion& conclusion : conclusions) {
      if (conclusion.measurements.empty() || !in_replay(conclusion)) continue;
      // A finding that was taken over may be about more pairs of cases than the conclusion.
      if (is_part_of_judged(conclusion)) continue;
      if (findings.empty() && !has_header) keep([&] { finding_file->append(header()); });
      findings.push_back(find(conclusion, known));
    }
    for (const Json& finding : findings_before) {
      const bool shown =
          std::ranges::any_of(findings, [&](const Json& other) { return other["claim_key"] == finding["claim_key"]; });
      if (!shown) findings.push_back(finding);
    }
    std::set<std::string> judged;
    size_t decided = 0;
    Doubts doubts;
    for (const Json& finding : findings) {
      judged.insert(finding["data"]["hypothesis"]["id"].get<std::string>());
      verdicts += verdict_text(finding);
      if (finding["data"]["verdict"]["state"] != name(attn::State::inconclusive) &&
          !is_exact(finding["data"]["estimate"])) {
        ++decided;
        doubts[measured_by(finding["data"])].push_back(1 - finding["confidence"].get<double>());
      }
      if (!replays_finding()) continue;
      const bool agrees = finding["data"]["verdict"]["state"] == replayed["data"]["verdict"]["state"];
      verdicts += fmt::format("{:<12} {} the replayed finding {}, which was {}\n", agrees ? "AGREES" : "DIFFERS",
                              agrees ? "with" : "from", replayed["id"].get<std::string>(),
                              replayed["data"]["verdict"]["state"].get<std::string>());
    }
    std::string silent;
    for (const Hypothesis& hypothesis : hypotheses) {
      const bool asked = !replays_finding() || replayed["data"]["hypothesis"]["id"] == hypothesis.id;
      if (asked && !judged.contains(hypothesis.id)) silent += (silent.empty() ? "" : ", ") + hypothesis.id;
    }
    if (decided > 0)
      verdicts += fmt::format("{}, from {}, {} decided; of these verdicts, {:.1f} are expected to be wrong.\n",
                              counted(decided, "verdict"), counted(doubts.size(), "measurement"),
                              decided == 1 ? "is" : "are", expected_wrong(doubts));
    if (!silent.empty())
      verdicts += fmt::format("{:<12} {}: not decided by the cases of this run\n", "NOT JUDGED", silent);
  }
  if (options.csv) {
    to_stdout(table_text());
  } else {
    const Json answer = answer_json(findings);
    print_json(answer);
    if (!options.json) {
      to_stdout(table_text() + end_text(answer, options.verdicts || replays_finding() ? verdicts : ""));
    }
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
  if (options.csv) to_stdout(table_text());
  print_json({{"replay", old.id}, {"measurement", now.id}, {"agrees", agrees}});
  if (!options.json && !options.csv) {
    const auto print_line = [](const char* when, const Measurement& record, const Timing* timing) {
      to_stdout(fmt::format("{:<9} {}  {} {}\n", when, record.id, record.status,
                            timing ? format_interval(*timing) : record.reason));
    };
    to_stdout(old.config.key() + "\n");
    print_line("recorded", old, before);
    print_line("now", now, after);
    const std::string why = both ? fmt::format("now {:.3f} of the recorded median, the intervals {}overlap",
                                               after->median_s / before->median_s, agrees ? "" : "do not ")
                                 : fmt::format("recorded {}, now {}", old.status, now.status);
    to_stdout(fmt::format("{}: {}\n", agrees ? "AGREES" : "DIFFERS", why));
  }
  return exit_status();
}

}  // namespace attn
