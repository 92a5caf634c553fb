#include "common/experiment/judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/base/shell.h"
#include "common/base/standard_streams.h"
#include "common/base/text_table.h"
#include "common/base/version.h"
#include "common/experiment/environment.h"
#include "common/experiment/report.h"
#include "common/experiment/table.h"
#include "common/records/decisions.h"
#include "common/records/finding.h"

namespace attn {
namespace {

constexpr const char* of_emulator = "emulated: an emulator ran this program, so times say nothing about the processor";

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

Json Judge::code_of(const Case& config) const {
  Json code = Json::array();
  const auto& results = recorder_.results();
  const auto result = std::ranges::find(results, config, &Measurement::config);
  if (result == results.end()) return code;
  for (const Json& pipeline : result->kernels()) code.push_back(pipeline.at("code_sha256"));
  return code;
}

bool Judge::emulated() const { return given_.info.on_host && recorder_.session().contains("emulated"); }

Json Judge::header() {
  const Json& test = tasks_.flush_selftest();
  const Json environment = {{"device", given_.info.json()},     {"ceilings", tasks_.ceilings().json()},
                            {"flush_selftest", test},           {"version", version()},
                            {"host_compiler", host_compiler()}, {"git", git_state(source_root())}};
  Json header = {{"schema", "run/1"},
                 {"id", ""},
                 {"experiment", given_.spec.name},
                 {"run", recorder_.run()},
                 {"session", recorder_.session()},
                 {"env", environment}};
  header["session"]["loaded"] = loaded();
  header["id"] = record_id(header);
  return header;
}

const std::string& Judge::loaded() {
  if (!loaded_) {
    const CoreTimes now = core_times();
    loaded_ = sign_of_others(given_.info, now.cores, others(started_, now));
  }
  return *loaded_;
}

Json Judge::find(const Conclusion& conclusion, const std::vector<Json>& known) {
  const auto claim =
      std::ranges::find(claims_, conclusion.hypothesis, [](const Claim& one) { return one.hypothesis.id; });
  if (claim == claims_.end()) {
    throw std::logic_error("a conclusion about '" + conclusion.hypothesis + "', which is no registered hypothesis");
  }
  Conclusion judged = conclusion;
  if (emulated() && !conclusion.exact && conclusion.correct) {
    judged.correct = false;
    judged.fault = of_emulator;
  }
  Json finding = make_finding(given_.spec.name, device_name(given_.info), claim->hypothesis, judged, run_id());
  Json cases = Json::array(), code = Json::array();
  for (const Case& config : cases_of(conclusion, recorder_.results())) {
    cases.push_back(config.json());
    code.push_back(code_of(config));
  }
  finding["data"]["cases"] = cases;
  finding["data"]["code"] = code;
  finding["id"] = record_id(finding);
  const auto recorded = std::ranges::find_if(known, [&](const Json& other) {
    return other.value("claim_key", Json()) == finding["claim_key"] &&
           other.value("/data/run"_json_pointer, Json()) == run_id();
  });
  if (recorded != known.end()) return *recorded;
  recorder_.store_finding(finding);
  return finding;
}

Json Judge::answer_json(const std::vector<Json>& findings) {
  const std::vector<Measurement>& results = recorder_.results();
  const MeasuredRun run = {.id = run_id(), .results = results, .comparisons = comparisons_.all()};
  DecisionInput input = {.experiment = given_.spec.name,
                         .device = device_name(given_.info),
                         .runs = {&run},
                         .complete =
                             [&](Case& config) {
                               if (given_.spec.complete) given_.spec.complete(config, given_.info);
                             },
                         .compared = given_.spec.compared_axes};
  for (const Json& finding : findings) input.claims.push_back(claim_of(finding));
  Json counts = {{"ok", 0}, {"wrong", 0}, {"skipped", 0}};
  for (const Measurement& result : results) counts[result.status] = counts.value(result.status, 0) + 1;
  Json found = {{"schema", "answer/1"}, {"experiment", given_.spec.name}, {"run", run_id()}};
  found.update(decisions(input));
  found["counts"] = counts;
  found["loaded"] = loaded();
  found["warnings"] =
      disturbances(given_.info, results, comparisons_.all(), started_.cores, others(started_, core_times()));
  if (emulated()) found["warnings"].push_back(of_emulator);
  found["measurements"] = given_.options.measurements_path;
  found["findings"] = given_.options.findings_path;
  return found;
}

std::string Judge::table_text() const {
  const TableOptions shown = {given_.options.all_columns, output_width(),
                              given_.spec.alternatives.empty() ? given_.spec.compared_axes : given_.spec.alternatives,
                              given_.options.baseline, given_.options.filter};
  const auto& results = recorder_.results();
  return given_.options.csv ? csv(results, shown) : table(results, tasks_.ceilings(), shown);
}

std::string Judge::end_text(const Json& answer, const std::string& verdicts) const {
  const size_t width = output_width();
  std::string text = "\n";
  std::istringstream lines(verdicts);
  for (std::string line; std::getline(lines, line);) text += wrapped(line, width, 13);
  if (!verdicts.empty()) text += "\n";
  for (const Json& warning : answer.at("warnings")) text += wrapped("WARNING " + warning.get<std::string>(), width, 2);
  if (!given_.options.only_verify && !selection_.replays_finding()) {
    const std::string loaded = answer.at("loaded");
    text += wrapped(fmt::format("ANSWER for {}, by this run{}", answer.at("device").get<std::string>(),
                                loaded.empty() ? "" : " on a loaded machine: " + loaded),
                    width, 2);
  }
  const std::string above = std::exchange(text, {});
  std::vector<std::string> counts;
  for (const auto& [status, count] : answer.at("counts").items())
    counts.push_back(fmt::format("{} {}", count.get<int>(), status));
  text += wrapped(fmt::format("{}", fmt::join(counts, ", ")), width, 2);
  text +=
      wrapped(fmt::format("records: {} {}", given_.options.measurements_path, given_.options.findings_path), width, 2);
  const std::filesystem::path report = std::filesystem::path(source_root()) / "scripts/report";
  if (std::filesystem::exists(report)) {  // the script is missing where only the programs are installed
    text += labelled_command(
        "report:  ",
        {std::filesystem::proximate(report).string(), given_.options.measurements_path, given_.options.findings_path},
        width);
  }
  const std::vector<Measurement>& results = recorder_.results();
  const auto last = std::ranges::find(results, "ok", &Measurement::status);
  const Json& rows = answer.at("rows");
  const auto choice = std::ranges::find_if(rows, [](const Json& row) { return row.at("options") > 0; });
  const std::string id = choice != rows.end()    ? choice->at("id").get<std::string>()
                         : last != results.end() ? last->id
                                                 : std::string();
  if (!id.empty()) {
    std::vector<std::string> words = {given_.options.arguments.front()};
    if (given_.options.measurements_path != Options().measurements_path) {
      words.insert(words.end(), {"--measurements", given_.options.measurements_path});
    }
    if (given_.options.findings_path != Options().findings_path)
      words.insert(words.end(), {"--out", given_.options.findings_path});
    words.insert(words.end(), {"--replay", short_id(id, results)});
    text += labelled_command("replay:  ", words, width);
  }
  if (given_.options.only_verify || selection_.replays_finding()) return above + text;
  constexpr size_t screen = 24, fewest = 6;  // lines
  const auto taken = static_cast<size_t>(std::ranges::count(above + text, '\n')) + 1;
  return above + decisions_text(answer, width, std::max(fewest, screen - std::min(screen, taken))) + "\n" + text;
}

int Judge::exit_status() const {
  const bool bad = std::ranges::any_of(recorder_.results(), [](const Measurement& result) {
    return result.status != "ok" && result.status != "skipped";
  });
  return bad || recorder_.unwritten() || tasks_.failed() ? 1 : 0;
}

std::optional<std::string> Judge::nothing_ran() const {
  std::map<std::string, int> reasons;
  const std::vector<Measurement>& results = recorder_.results();
  for (const Measurement& result : results) {
    if (result.status != "skipped" || result.reason == budget_spent) return {};
    ++reasons[result.reason];
  }
  if (recorder_.only_taken_over()) return {};  // there was nothing left to do
  if (results.size() == 1) return "the case cannot run here: " + results[0].reason;
  const auto commonest = std::ranges::max_element(reasons, {}, [](const auto& reason) { return reason.second; });
  return fmt::format("none of {} cases can run here; the reason of {} of these cases: {}", results.size(),
                     commonest->second, commonest->first);
}

std::vector<Json> Judge::findings_of(const std::vector<Conclusion>& conclusions) {
  std::vector<std::string> problems;
  const std::vector<Json> known = read_records(given_.options.findings_path, problems);
  recorder_.tell_problems(given_.options.findings_path, problems);
  bool has_header = std::ranges::any_of(known, [&](const Json& record) {
    return record.value("schema", "") == "run/1" && record.value("/run/id"_json_pointer, Json()) == run_id();
  });
  std::vector<Json> findings;
  for (const Conclusion& conclusion : conclusions) {
    const bool wanted = !selection_.replays_finding() || selection_.wants(conclusion.hypothesis, conclusion.subject);
    if (conclusion.measurements.empty() || !wanted) continue;
    // A finding that was taken over may be about more pairs of cases than the conclusion.
    if (selection_.is_part_of_judged(conclusion, recorder_.results())) continue;
    if (!std::exchange(has_header, true)) recorder_.append_finding(header());
    findings.push_back(find(conclusion, known));
  }
  for (const Json& finding : selection_.findings_before()) {
    const bool shown =
        std::ranges::any_of(findings, [&](const Json& other) { return other["claim_key"] == finding["claim_key"]; });
    if (!shown) findings.push_back(finding);
  }
  return findings;
}

std::string Judge::verdicts_text(const std::vector<Json>& findings) const {
  std::string verdicts, silent;
  std::set<std::string> judged;
  size_t decided = 0;
  Doubts doubts;
  for (const Json& finding : findings) {
    const Json& data = finding["data"];
    judged.insert(data["hypothesis"]["id"].get<std::string>());
    verdicts += verdict_text(finding);
    const Json& state = data["verdict"]["state"];
    if (state != name(State::inconclusive) && !is_exact(data["estimate"])) {
      ++decided;
      doubts[measured_by(data)].push_back(wrong_of(data));
    }
    if (!selection_.replays_finding()) continue;
    const Json& replayed = selection_.replayed();
    const Json& before = replayed["data"]["verdict"]["state"];
    verdicts +=
        fmt::format("{:<12} {} the replayed finding {}, which was {}\n", state == before ? "AGREES" : "DIFFERS",
                    state == before ? "with" : "from", replayed["id"].get<std::string>(), before.get<std::string>());
  }
  for (const Hypothesis& hypothesis : hypotheses(claims_)) {
    if (judged.contains(hypothesis.id) || (selection_.replays_finding() && !selection_.wants(hypothesis.id))) continue;
    silent += (silent.empty() ? "" : ", ") + hypothesis.id;
  }
  if (decided > 0) {
    verdicts += fmt::format("{}, from {}, {} decided; of these verdicts, {:.1f} are expected to be wrong.\n",
                            counted(decided, "verdict"), counted(doubts.size(), "measurement"),
                            decided == 1 ? "is" : "are", expected_wrong(doubts));
  }
  if (!silent.empty()) {
    verdicts += fmt::format("{:<12} {}: not decided by the cases of this run\n", "NOT JUDGED", silent);
  }
  return verdicts;
}

int Judge::conclude(const std::vector<Conclusion>& conclusions) {
  recorder_.progress().clear();
  const std::vector<Measurement>& results = recorder_.results();
  if (given_.options.baseline && std::ranges::none_of(results, [&](const Measurement& result) {
        return result.main_timing() && has_value(result.config, *given_.options.baseline);
      })) {
    recorder_.tell(fmt::format("--baseline {}={}: no measured case of this run has this value",
                               given_.options.baseline->name, to_string(given_.options.baseline->values.front())));
  }
  const std::vector<Json> findings = given_.options.only_verify ? std::vector<Json>() : findings_of(conclusions);
  if (given_.options.csv) {
    to_stdout(table_text());
  } else {
    const Json answer = answer_json(findings);
    recorder_.print_json(answer);
    const bool shows_verdicts =
        !given_.options.only_verify && (given_.options.verdicts || selection_.replays_finding());
    if (!given_.options.json) to_stdout(table_text() + end_text(answer, shows_verdicts ? verdicts_text(findings) : ""));
  }
  if (const auto reason = selection_.replays() ? std::nullopt : nothing_ran()) {
    recorder_.tell(*reason);
    return 4;
  }
  return exit_status();
}

int Judge::compare_with_replayed() {
  const Measurement old = measurement_from_json(selection_.replayed());
  const Measurement& now = recorder_.results().back();
  const Timing* before = old.main_timing();
  const Timing* after = now.main_timing();
  const bool both = before && after;
  const bool agrees = both ? before->ci_lo_s <= after->ci_hi_s && after->ci_lo_s <= before->ci_hi_s
                           : !before && !after && old.status == now.status;
  recorder_.progress().clear();
  if (given_.options.csv) to_stdout(table_text());
  recorder_.print_json({{"replay", old.id}, {"measurement", now.id}, {"agrees", agrees}});
  if (!given_.options.json && !given_.options.csv) {
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
