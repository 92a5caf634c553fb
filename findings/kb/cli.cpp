#include "findings/kb/cli.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "common/base/command_line.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/progress.h"
#include "common/base/run_program.h"
#include "common/base/standard_streams.h"
#include "common/base/text_table.h"
#include "common/records/case_table.h"
#include "common/records/recorded.h"
#include "common/records/spread.h"
#include "common/source/kernel_source.h"
#include "findings/kb/advice.h"
#include "findings/kb/compare.h"
#include "findings/kb/export.h"
#include "findings/kb/pooled_claims.h"
#include "findings/kb/record_input.h"
#include "findings/kb/runs.h"
#include "findings/kb/sqlite.h"
#include "findings/kb/store.h"
#include "findings/kb/verify.h"

namespace attn::kb {
namespace {

constexpr const char* summary = "The knowledge base: searches, checks and compares the findings of the experiments.";

constexpr const char* footer = R"(
DATABASE
  --db FILE, else $KB_DB, else $XDG_DATA_HOME/attention-proto/kb.sqlite, else ~/.local/share/attention-proto/kb.sqlite.
  FILE is the path of a file, not one of SQLite's special names (:memory:, file:...).
  ingest and add create the file if it is missing. Several processes may use the file at once. If the file or its
  folder cannot be written, commands that only read still work; ingest, add and dedup --apply end with status 2.

EXIT STATUS
  0    done
  1    a record file has bad lines, verify or check found problems, or compare found a regression; or the command
       failed, for example because a file could not be written
  2    bad input: one line names the bad input and says what is allowed
  130  interrupted; nothing is kept of the file that was being ingested

kb COMMAND --help describes a command. Write '--' before words that begin with '-'.
)";

volatile std::sig_atomic_t stopped = 0;

/// Installs signal handlers. After the first SIGINT or SIGTERM the running ingestion ends and keeps nothing of its
/// file. A second signal of the same kind has its usual effect.
void heed_signals() {
  struct sigaction action{};
  action.sa_handler = [](int) { stopped = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

/// Prints to stdout. If stdout could not be written, run_program() reports this error.
void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string json_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

Json summary_of(const Record& record) {
  Json json = {{"id", record.id},         {"kind", record.kind},   {"experiment", record.experiment},
               {"device", record.device}, {"topic", record.topic}, {"state", record.state}};
  if (record.kind == "run") {
    json["run"] = record.run_id();
  } else if (record.kind != "measurement") {
    json["confidence"] = record.confidence;
    json["title"] = record.title;
  } else {
    json["case"] = record.json().at("case");
  }
  json["ts"] = record.ts;
  return json;
}

std::string headline(const Record& record) {
  if (record.kind == "run") {
    const Json argv = record.json().at("run").at("argv");
    return printable(fmt::format("{}: {}", record.run_id(), fmt::join(argv.get<std::vector<std::string>>(), " ")));
  }
  if (record.kind != "measurement") return printable(record.title);
  return printable(Case::from_json(record.json().at("case")).key());
}

std::string joined_text(const Json& words) {
  return fmt::format("{}", fmt::join(words.get<std::vector<std::string>>(), " "));
}

/// The arguments of all commands; a command uses some of them.
struct Arguments {
  std::string db;
  bool json = false;
  Filter filter;
  std::vector<std::string> files, words, ids;
  std::string id;
  Note note;
  std::string confidence, tags;
  bool strict = false, apply = false;
  std::string format, skill = "gpu-perf";
  std::string a, b, by = "file", out;
  double floor_percent = 2;

  std::string path() const {
    std::string path = db.empty() ? default_path() : db;
    if (path == ":memory:" || path.starts_with("file:")) {
      throw BadInput(
          fmt::format("'{}': SQLite takes this name for a database that is no plain file; --db and KB_DB take "
                      "the path of a file, such as ./kb.sqlite",
                      path));
    }
    return path;
  }
  Store read() const { return Store::open(path(), Store::Mode::read); }
  Store write() const { return Store::open(path(), Store::Mode::write); }
};

std::string one_of(const std::string& option, const std::string& text, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return text;
  throw BadInput(fmt::format("{} {}: not allowed; one of {}", option, text, fmt::join(allowed, ", ")));
}

/// Ingests a whole file, or stdin for "-", into the store. Reports bad lines on stderr.
Ingested ingest(Store& store, const std::string& name) {
  // A file that is no file of records, such as a log, may have very many bad lines.
  constexpr size_t most_shown = 10, most_bad = 100'000;
  const bool standard_input = name == "-";
  const std::string place = standard_input ? "stdin" : name;
  RecordInput file(name);
  size_t megabytes = 0;
  if (!standard_input) {
    std::error_code error;
    megabytes = std::filesystem::file_size(name, error) >> 20;
    if (error) megabytes = 0;
  }
  Progress progress(!isatty(STDERR_FILENO));
  progress.add(megabytes);
  size_t shown = 0;
  const auto advance = [&](size_t bytes, size_t bad) {
    if (bad > most_bad) {
      throw BadInput(fmt::format("{}: has more than {} bad lines; name a file of records", place, most_bad));
    }
    for (; shown < bytes >> 20; ++shown) {
      if (shown >= megabytes) progress.add(1);  // the size of a pipe or of an unpacked text is not known beforehand
      progress.begin(fmt::format("{}, MiB", place));
      progress.finish("");
    }
    return !stopped;
  };
  Ingested result = store.ingest(file, advance);
  progress.clear();
  for (const BadLine& bad : result.bad) {
    if (static_cast<size_t>(&bad - result.bad.data()) == most_shown) {
      to_stderr(fmt::format("kb: {}: and {} more bad lines\n", printable(place), result.bad.size() - most_shown));
      break;
    }
    to_stderr(fmt::format("kb: {}\n", printable(fmt::format("{}: line {}: {}", place, bad.line, bad.problem))));
  }
  return result;
}

int run_ingest(const Arguments& given) {
  std::vector<std::string> files = given.files;
  if (files.empty()) {
    if (isatty(STDIN_FILENO)) throw BadInput("ingest: name a FILE, or '-' to type records");
    files = {"-"};
  }
  Store store = given.write();
  heed_signals();
  bool bad = false;
  for (const std::string& file : files) {
    const Ingested result = ingest(store, file);
    bad |= !result.bad.empty();
    if (given.json) {
      Json lines = Json::array();
      for (const BadLine& line : result.bad) lines.push_back({{"line", line.line}, {"problem", line.problem}});
      print(json_line({{"file", file},
                       {"lines", result.lines},
                       {"added", result.added},
                       {"known", result.known},
                       {"bad", lines},
                       {"db", store.path()}}));
    } else {
      print(fmt::format("{}: {} added, {} known already, {} bad, of {} lines; {}\n", file, result.added, result.known,
                        result.bad.size(), result.lines, store.path()));
    }
  }
  return bad ? 1 : 0;
}

int run_add(const Arguments& given) {
  Note note = given.note;
  if (!given.confidence.empty()) note.confidence = parse_confidence(given.confidence);
  std::istringstream tags(given.tags);
  for (std::string tag; std::getline(tags, tag, ',');) {
    tag.erase(0, tag.find_first_not_of(' '));
    tag.erase(tag.find_last_not_of(' ') + 1);
    if (!tag.empty() && std::find(note.tags.begin(), note.tags.end(), tag) == note.tags.end()) note.tags.push_back(tag);
  }
  for (const std::string* text : {&note.domain, &note.topic, &note.claim}) {
    if (text->empty()) throw BadInput("add: DOMAIN, TOPIC and CLAIM must not be empty");
  }
  const Json record = to_json(note);
  try {
    (void)record.dump();
  } catch (const Json::exception&) {
    throw BadInput("add: an argument is not valid UTF-8");
  }
  Store store = given.write();
  const bool added = store.add(record);
  const std::string id = record["id"];
  print(given.json ? json_line({{"id", id}, {"added", added}})
                   : fmt::format("{}{}\n", id, added ? "" : ", known already"));
  return 0;
}

int run_search(const Arguments& given) {
  const std::string query = fmt::format("{}", fmt::join(given.words, " "));
  const auto matches = given.read().search(query, given.filter);
  for (const Match& match : matches) {
    if (given.json) {
      Json json = summary_of(match.record);
      json["score"] = match.score;
      json["snippet"] = match.snippet;
      print(json_line(json));
      continue;
    }
    const Record& record = match.record;
    print(
        fmt::format("{}  {} {} {}  {}\n    {}\n", record.id, record.kind == "note" ? "note" : record.experiment,
                    printable(record.topic + (record.state.empty() ? "" : " " + record.state)), confidence_text(record),
                    printable(record.title + (record.device.empty() ? "" : " (" + with_one_unit(record.device) + ")")),
                    printable(match.snippet)));
  }
  if (matches.empty() && !given.json)
    to_stderr(fmt::format("kb: no finding and no note has all these words: {}\n", printable(query)));
  return 0;
}

/// Returns the record of the knowledge base, else of findings/recorded of the source tree.
Record find_record(const Arguments& given, const std::string& id) {
  try {
    return given.read().find(id);
  } catch (const NoSuchRecord& missing) {
    if (id.find_first_not_of("0123456789abcdef") != std::string::npos) throw;
    const std::vector<std::string> found = recorded_lines(source_root(), id);
    if (found.empty()) throw BadInput(fmt::format("{}; findings/recorded has no such record, either", missing.what()));
    std::istringstream lines(fmt::format("{}\n", fmt::join(found, "\n")));
    Store recorded = Store::open(":memory:", Store::Mode::write);
    recorded.ingest(lines);
    return recorded.find(id);
  }
}

int run_show(const Arguments& given) {
  const Record record = find_record(given, given.id);
  if (given.json) {
    print(record.line + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"id", record.id}, {"kind", record.kind}};
  const auto row = [&](const std::string& name, const std::string& text) {
    if (!text.empty()) rows.push_back({name, printable(text)});
  };
  const Json json = record.joined();
  const auto text = [&](const char* pointer) {
    const Json value = json.value(Json::json_pointer(pointer), Json());
    return value.is_null() ? std::string() : value.is_string() ? value.get<std::string>() : value.dump();
  };
  row("title", record.title);
  row("content", text("/content"));
  if (record.kind == "finding") {
    const Json& data = json.at("data");
    row("claim", fmt::format("{} {} {} {}", text("/data/hypothesis/text"), text("/data/hypothesis/metric"),
                             text("/data/hypothesis/op"), text("/data/hypothesis/threshold")));
    row("origin", text("/data/hypothesis/origin"));
    row("verdict", fmt::format("{}: {}", record.state, text("/data/verdict/reason")));
    row("confidence", confidence_text(record));
    const Json& estimate = data.at("estimate");
    row("estimate",
        fmt::format("{:.4g}, next run [{:.4g}, {:.4g}], {} processes, {} sessions", estimate.at("value").get<double>(),
                    estimate.at("next_lo").get<double>(), estimate.at("next_hi").get<double>(),
                    estimate.at("processes").get<int64_t>(), estimate.at("sessions").get<int64_t>()));
    row("device", with_one_unit(record.device));
    row("subject", text("/data/subject"));
    if (const Json& compare = data.at("compare"); !compare.is_null()) {
      row("baseline", Case::from_json(compare.at("baseline")).key());
      row("contender", Case::from_json(compare.at("contender")).key());
      row("noise floor", fmt::format("{:.2g}", compare.at("aa_floor").get<double>()));
    }
    row("measurements", fmt::format("{}", fmt::join(data.at("measurements").get<std::vector<std::string>>(), " ")));
    if (data.at("run").is_object()) {
      row("run", fmt::format("{}, {}", text("/data/run/id"), record.ts));
      row("commit", text("/data/env/git/commit") + (text("/data/env/git/dirty") == "true" ? ", changed" : ""));
      row("command", joined_text(data.at("run").at("argv")));
      row("replay", text("/data/run/replay"));
    } else {
      row("run", fmt::format("{}; its header (run/1) is not in the knowledge base", text("/data/run")));
    }
  } else if (record.kind == "measurement") {
    row("experiment", record.experiment);
    row("device", with_one_unit(record.device));
    row("case", headline(record));
    row("status", record.state + (text("/reason").empty() ? "" : ": " + text("/reason")));
    for (const Json& time : json.at("time")) {
      row(time.at("scope"),
          fmt::format("{:.1f} us [{:.1f}, {:.1f}], {} samples, CV {:.1f} %", 1e6 * time.at("median_s").get<double>(),
                      1e6 * time.at("ci_lo_s").get<double>(), 1e6 * time.at("ci_hi_s").get<double>(),
                      time.at("n").get<int64_t>(), 100 * time.at("cv").get<double>()));
    }
    if (!json.at("rate").is_null()) {
      row("rate", fmt::format("{:.4g} TFLOP/s, {:.4g} GB/s", json.at("rate").at("tflops").get<double>(),
                              json.at("rate").at("gbps").get<double>()));
    }
    row("pipeline", text("/pipeline/key"));
    row("run", fmt::format("{}, {}", text("/run_id"), record.ts));
  } else if (record.kind == "run") {
    row("experiment", record.experiment);
    row("device", with_one_unit(record.device));
    row("run", fmt::format("{}, {}", record.run_id(), record.ts));
    row("command", joined_text(json.at("run").at("argv")));
    row("commit", text("/env/git/commit") + (text("/env/git/dirty") == "true" ? ", changed" : ""));
    row("version", text("/env/version"));
    row("toolchain", text("/env/device/toolchain"));
    row("replay", text("/run/replay"));
  } else {
    row("domain", record.domain);
    row("topic", record.topic);
    row("confidence", confidence_text(record));
    for (const char* name : {"source", "url", "type"}) row(name, text((std::string("/") + name).c_str()));
  }
  if (record.kind == "finding" || record.kind == "note") {
    row("tags", fmt::format("{}", fmt::join(json.at("tags").get<std::vector<std::string>>(), " ")));
  }
  print(text_table(rows, Align::left));
  return 0;
}

int run_list(const Arguments& given) {
  std::vector<std::vector<std::string>> rows;
  for (const Record& record : given.read().list(given.filter)) {
    if (given.json) {
      print(json_line(summary_of(record)));
    } else {
      const std::string what = record.kind == "note" ? record.domain : record.experiment;
      rows.push_back({record.id, record.kind, printable(record.topic.empty() ? what : what + "/" + record.topic),
                      record.state, confidence_text(record), printable(with_one_unit(record.device)),
                      headline(record)});
    }
  }
  print(text_table(rows, Align::left));
  return 0;
}

int run_stats(const Arguments& given) {
  const Json stats = given.read().stats();
  if (given.json) {
    print(json_line(stats));
    return 0;
  }
  const Json leaves = stats.flatten();
  std::vector<std::vector<std::string>> rows;
  for (const auto& [path, value] : leaves.items()) {
    if (value.is_structured() || value.is_null()) continue;
    std::string name = Json::json_pointer(path).to_string().substr(1);
    for (const auto& [from, to] : {std::pair{"~1", "/"}, {"~0", "~"}}) {
      for (size_t at; (at = name.find(from)) != name.npos;) name.replace(at, 2, to);
    }
    rows.push_back({printable(with_one_unit(name)), value.is_string() ? value.get<std::string>() : value.dump()});
  }
  print(text_table(rows, Align::left));
  return 0;
}

int run_topics(const Arguments& given) {
  std::vector<std::vector<std::string>> rows = {
      {"topic", "findings", "supported", "refuted", "inconclusive", "notes", "latest"}};
  for (const Json& topic : given.read().topics()) {
    if (given.json) {
      print(json_line(topic));
      continue;
    }
    const std::string group = topic["experiment"].get<std::string>().empty() ? topic["domain"] : topic["experiment"];
    std::vector<std::string> row = {printable(group + "/" + topic["topic"].get<std::string>())};
    for (const char* count : {"findings", "supported", "refuted", "inconclusive", "notes"})
      row.push_back(topic[count].dump());
    row.push_back(topic["latest"]);
    rows.push_back(std::move(row));
  }
  if (!given.json) print(text_table(rows, Align::left));
  return 0;
}

int run_verify(const Arguments& given) {
  bool bad = false;
  Store store = given.files.empty() ? given.read() : Store::open(":memory:", Store::Mode::write);
  for (const std::string& file : given.files) bad |= !ingest(store, file).bad.empty();
  const Verification result = verify(store);
  const bool sound = !bad && result.problems.empty();
  const bool strictly = result.contradictions.empty() && result.stale.empty();
  if (given.json) {
    const auto list = [](const std::vector<Problem>& problems) {
      Json json = Json::array();
      for (const Problem& problem : problems) json.push_back({{"id", problem.id}, {"text", problem.text}});
      return json;
    };
    const auto opposed = [](const std::vector<Contradiction>& all, Opposition why) {
      Json json = Json::array();
      for (const Contradiction& one : all) {
        if (one.why != why) continue;
        Json findings = Json::array();
        for (const Record& finding : one.findings) findings.push_back(summary_of(finding));
        json.push_back({{"claim_key", one.claim_key}, {"findings", findings}});
      }
      return json;
    };
    print(json_line({{"records", result.records},
                     {"problems", list(result.problems)},
                     {"contradictions", opposed(result.contradictions, Opposition::contradiction)},
                     {"spread", opposed(result.explained, Opposition::spread)},
                     {"changed", opposed(result.explained, Opposition::changed)},
                     {"stale", list(result.stale)},
                     {"fresh", result.fresh},
                     {"superseded", result.superseded},
                     {"unknown", result.unknown}}));
  } else {
    for (const Problem& problem : result.problems)
      print(fmt::format("PROBLEM  {}  {}\n", problem.id, printable(problem.text)));
    for (const Contradiction& contradiction : result.contradictions) {
      print(fmt::format("CONTRADICTION  {}\n", printable(contradiction.claim_key)));
      for (const Record& finding : contradiction.findings) {
        print(fmt::format("    {}  {}  {}  {}\n", finding.id, finding.ts, finding.state, printable(finding.title)));
      }
    }
    for (const Problem& stale : result.stale) print(fmt::format("STALE  {}  {}\n", stale.id, printable(stale.text)));
    print(
        fmt::format("claims with supported and refuted findings: {} explained by the spread between runs, {} explained "
                    "by other code or conditions, {} contradictions\n",
                    result.explained_by(Opposition::spread), result.explained_by(Opposition::changed),
                    result.contradictions.size()));
    print(fmt::format(
        "{} records: {} problems, {} contradictions; findings of today's kernels {}, superseded {}, stale {}, not "
        "known {}\n",
        result.records, result.problems.size(), result.contradictions.size(), result.fresh, result.superseded,
        result.stale.size(), result.unknown));
  }
  return sound && (strictly || !given.strict) ? 0 : 1;
}

int run_pool(const Arguments& given) {
  Store store = given.files.empty() ? given.read() : Store::open(":memory:", Store::Mode::write);
  bool bad = false;
  for (const std::string& file : given.files) bad |= !ingest(store, file).bad.empty();
  for (const Json& claim : pooled_claims(store.list({}))) print(json_line(claim));
  return bad ? 1 : 0;
}

/// The text in lower case, with one blank before each word: texts that differ only in case and blanks become equal.
std::string normal(const std::string& text) {
  std::istringstream words(text);
  std::string result;
  for (std::string word; words >> word;) result += " " + word;
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

/// Returns whether `part` occurs in a device's name. Case and the number of blanks do not matter.
bool has_part(const std::string& device, const std::string& part) {
  // normal() puts a blank before each word. The first blank is removed, because the part may begin within a word.
  return normal(device).find(normal(part).erase(0, 1)) != std::string::npos;
}

int run_advice(const Arguments& given) {
  std::vector<Json> claims = given.a.empty() ? pooled_claims(given.read().list({})) : read_lines(given.a, "pooled/1");
  // Which claims may advise depends on all claims. So claims are selected by device and experiment only afterwards.
  std::erase_if(claims, [&](const Json& claim) {
    return !has_part(claim.at("device"), given.filter.device) ||
           !claim.at("experiment").get_ref<const std::string&>().starts_with(given.filter.experiment);
  });
  const std::string registered = source_root() + "/findings/claims.jsonl";
  const std::vector<Json> devices =
      advice_by_device(claims, std::filesystem::exists(registered) ? read_lines(registered, "") : std::vector<Json>());
  if (given.json) {
    for (const Json& device : devices) print(json_line(device));
    return 0;
  }
  print(advice_page(devices));
  std::erase_if(claims, [](const Json& claim) { return claim.at("advice") == ""; });
  const auto withheld = std::erase_if(claims, [](const Json& claim) { return claim.at("advised") == false; });
  print(fmt::format(
      "claims that advise: {}; claims too uncertain to advise: {}; wrong verdicts to expect in this advice: {:.1f}\n",
      claims.size(), withheld, expected_wrong(claims)));
  return 0;
}

int run_check(const Arguments& given) {
  int64_t records = 0, bad = 0;
  for (const std::string& file : given.files) {
    Store store = Store::open(":memory:", Store::Mode::write);
    const Ingested ingested = ingest(store, file);
    bad += static_cast<int64_t>(ingested.bad.size());
    records += static_cast<int64_t>(ingested.bad.size());
    Json found = Json::array();
    for (const BadLine& line : ingested.bad) found.push_back({{"line", line.line}, {"problem", line.problem}});
    for (const Record& record : store.list({})) {
      ++records;
      const std::vector<std::string> problems = verify_record(record);
      if (problems.empty()) continue;
      ++bad;
      const std::string text =
          problems.size() == 1 ? problems[0] : fmt::format("{} (and {} more)", problems[0], problems.size() - 1);
      found.push_back({{"id", record.id}, {"problem", text}});
      if (!given.json) print(fmt::format("{}: {}: {}\n", file, record.id, printable(text)));
    }
    if (given.json) print(json_line({{"file", file}, {"lines", ingested.lines}, {"bad", found}}));
  }
  if (!given.json) print(fmt::format("{} of {} records are sound\n", records - bad, records));
  return bad == 0 ? 0 : 1;
}

int run_fit(const Arguments& given) {
  const std::string own = source_root() + "/findings/spread.json";
  std::error_code error;
  if (!given.files.empty() && (given.out.empty() || std::filesystem::equivalent(given.out, own, error))) {
    throw BadInput("fit: FILEs need --out FILE: findings/spread.json is made from findings/recorded only");
  }
  const std::vector<std::string> files = given.files.empty() ? recorded_files(source_root()) : given.files;
  if (files.empty()) throw BadInput("fit: the source tree has no recorded runs; name a FILE");
  require_output(given.out, files);
  Store store = Store::open(":memory:", Store::Mode::write);
  bool bad = false;
  for (const std::string& file : files) bad |= !ingest(store, file).bad.empty();
  const Json fitted = fit_spreads(store.list({}));
  const std::string text = fitted.dump(2) + "\n";
  const std::string out = given.out.empty() ? own : given.out;
  if (out == "-") {
    print(text);
  } else if (!PendingFile(out).write(text)) {
    throw std::runtime_error(fmt::format("{}: cannot be written", out));
  } else if (!given.json) {
    print(fmt::format("{}: {} devices and kinds of device\n", out, fitted.size()));
  }
  return bad ? 1 : 0;
}

/// A text that is equal for duplicates with different ids: findings of one claim in one run; headers of one run;
/// measurements of one case in one run with the same times; notes that differ only in case, blanks and confidence.
std::string identity(const Record& record) {
  const Json json = record.json();
  if (record.kind == "finding") {
    return fmt::format("finding\n{}\n{}", record.claim_key, record.run_id());
  }
  if (record.kind == "run") return fmt::format("run\n{}", record.run_id());
  if (record.kind == "measurement") {
    return fmt::format("measurement\n{}\n{}\n{}\n{}\n{}", record.experiment, record.device,
                       json.at("run_id").get<std::string>(), json.at("case").dump(), json.at("time").dump());
  }
  std::string texts = "note";
  for (const auto& [field, value] : json.items()) {
    if (field == "id" || field == "confidence") continue;
    texts += "\n" + field + normal(value.is_string() ? value.get<std::string>() : value.dump());
  }
  return texts;
}

int run_dedup(const Arguments& given) {
  Store store = given.apply ? given.write() : given.read();
  std::map<std::string, std::vector<Record>> groups;
  for (Record& record : store.list({})) groups[identity(record)].push_back(std::move(record));
  std::vector<std::string> removed;
  int64_t duplicated = 0;
  for (auto& [key, records] : groups) {
    if (records.size() < 2) continue;
    ++duplicated;
    // The record with the highest confidence is kept; among records of equal confidence, the record that arrived last
    // is kept.
    const auto kept = std::max_element(records.begin(), records.end(), [](const Record& a, const Record& b) {
      return std::pair(a.confidence, a.number) < std::pair(b.confidence, b.number);
    });
    std::vector<std::string> others;
    for (const Record& record : records) {
      if (record.id != kept->id) others.push_back(record.id);
    }
    removed.insert(removed.end(), others.begin(), others.end());
    if (given.json) {
      print(json_line({{"kept", kept->id}, {"duplicates", others}, {"removed", given.apply}}));
    } else {
      print(fmt::format("{}  {}\n    {} {}\n", kept->id, headline(*kept), given.apply ? "removed" : "would remove",
                        fmt::join(others, " ")));
    }
  }
  if (given.apply) store.remove(removed);
  if (!given.json) {
    print(fmt::format("{} records {}; {} have duplicates{}\n", removed.size(),
                      given.apply ? "removed" : "could be removed", duplicated,
                      given.apply || removed.empty() ? "" : "; --apply removes them"));
  }
  return 0;
}

int run_export(const Arguments& given) {
  if (given.json && given.format != "jsonl")
    throw BadInput(fmt::format("--json and --format {}: choose one", given.format));
  const std::vector<Record> records = given.read().list(given.filter);
  if (given.format == "md") {
    print(to_markdown(records));
  } else if (given.format == "csv") {
    print(to_csv(records));
  } else if (given.format == "gpu-forge") {
    print(to_gpu_forge(records, given.skill));
  } else {
    for (const Record& record : records) print(record.line + "\n");
  }
  return 0;
}

int run_cite(const Arguments& given) {
  std::vector<Record> records;
  for (const std::string& id : given.ids)
    records.push_back(find_record(given, id));  // throws before anything is printed
  for (const Record& record : records) {
    const std::string text = citation(record);
    print(given.json ? json_line({{"id", record.id}, {"citation", text}}) : text + "\n");
  }
  return 0;
}

Side side_of_files(const std::string& path, bool& bad) {
  Store store = Store::open(":memory:", Store::Mode::write);
  for (const std::string& file : record_files(path)) bad |= !ingest(store, file).bad.empty();
  return {path, store.list({})};
}

Side side_of_device(const std::vector<Record>& records, const std::string& device) {
  Side side{device, {}};
  for (const Record& record : records) {
    if (record.device == device) side.records.push_back(record);
  }
  if (!side.records.empty()) return side;
  // A part of a device's name is enough if only one device with measurements has this part in its name. Findings do not
  // count here: a finding that compares two devices has both names in its `device`, which is the name of no device.
  std::set<std::string> matching;
  for (const Record& record : records) {
    if (record.kind == "measurement" && has_part(record.device, device)) matching.insert(record.device);
  }
  if (matching.empty())
    throw BadInput(fmt::format("{}: there are no measurements of that device; kb stats lists devices", device));
  if (matching.size() > 1) {
    throw BadInput(fmt::format("{}: several devices have this text in their names: '{}'; give more of the name", device,
                               with_one_unit(fmt::format("{}", fmt::join(matching, "', '")))));
  }
  return side_of_device(records, *matching.begin());
}

Json to_json(const Compared& one) {
  const auto figure = [&](double Estimate::* value) { return one.ratio ? Json((*one.ratio).*value) : Json(nullptr); };
  return {{"change", name(one.change)},
          {"regression", one.regression},
          {"experiment", one.experiment},
          {"config", one.config.key()},
          {"scope", one.scope},
          {"ratio", figure(&Estimate::value)},
          {"ci_lo", figure(&Estimate::ci_lo)},
          {"ci_hi", figure(&Estimate::ci_hi)},
          {"floor", one.floor},
          {"reason", one.reason},
          {"a", {{"id", one.id_a}, {"device", one.device_a}, {"runs", one.runs_a}}},
          {"b", {{"id", one.id_b}, {"device", one.device_b}, {"runs", one.runs_b}}}};
}

/// Returns a table for each experiment, with the configurations whose times are compared. Below the table are the
/// reasons why the times of the other configurations are not compared.
std::string printed(const std::vector<Compared>& configurations) {
  std::vector<std::pair<std::string, std::vector<const Compared*>>> experiments;  // in order of first appearance
  for (const Compared& one : configurations) {
    auto place = std::ranges::find(experiments, one.experiment, [](const auto& known) { return known.first; });
    if (place == experiments.end()) place = experiments.insert(place, {one.experiment, {}});
    place->second.push_back(&one);
  }
  std::string text;
  for (const auto& [experiment, all] : experiments) {
    CaseTable table = {.heads = {"B, and B/A of time", "device", "floor"},
                       .rows = {},
                       .width = output_width(),
                       .remedy = "--json prints them"};
    std::vector<CaseReason> reasons;
    std::vector<Case> cases;
    std::set<std::string> devices;
    for (const Compared* one : all) {
      cases.push_back(one->config);
      if (one->ratio) devices.insert(one->device_a);
    }
    for (const Compared* one : all) {
      const std::string change(name(one->change));
      if (!one->ratio) {
        const bool both = !one->id_a.empty() && !one->id_b.empty();
        reasons.push_back({both ? change : "not compared", one->reason, one->config, both});
        continue;
      }
      const std::string figures =
          fmt::format("{} {:.4g} [{:.4g}, {:.4g}]", change, one->ratio->value, one->ratio->ci_lo, one->ratio->ci_hi);
      table.rows.push_back(
          {one->config, {figures, devices.size() > 1 ? one->device_a : "", fmt::format("{:.2g}", one->floor)}});
    }
    text += fmt::format("{}{}\n{}{}\n", text.empty() ? "" : "\n", experiment, case_table(std::move(table)),
                        reasons_text(reasons, varying_axes(cases), output_width()));
  }
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) result += printable(with_one_unit(line)) + "\n";
  return result;
}

int run_compare(const Arguments& given) {
  const double min_floor = given.floor_percent / 100;
  bool bad = false;
  Side a, b;
  if (given.by == "file") {
    a = side_of_files(given.a, bad);
    b = side_of_files(given.b, bad);
  } else {
    const std::vector<Record> records = given.read().list(given.filter);
    if (given.by == "device") {
      a = side_of_device(records, given.a);
      b = side_of_device(records, given.b);
    } else {
      a = {given.a, of_commit(records, given.a)};
      b = {given.b, of_commit(records, given.b)};
    }
  }
  Comparisons result = compare(a, b, min_floor);
  // Regressions come first. Configurations that one side lacks come last.
  std::stable_sort(result.configurations.begin(), result.configurations.end(),
                   [](const Compared& x, const Compared& y) {
                     const auto rank = [](const Compared& one) {
                       return one.regression                         ? 0
                              : one.id_a.empty() || one.id_b.empty() ? 5
                                                                     : 1 + (one.change == Change::same      ? 3
                                                                            : one.change == Change::unclear ? 2
                                                                                                            : 1);
                     };
                     return rank(x) < rank(y);
                   });
  if (given.json) {
    for (const Compared& one : result.configurations) print(json_line(to_json(one)));
  } else {
    print(printed(result.configurations));
  }
  for (const std::string& note : result.notes) {
    const std::string text = printable(with_one_unit(note));
    if (given.json) to_stderr(text + "\n");
    if (!given.json) print(wrapped(text, output_width(), 2));
  }
  const bool wide = std::ranges::any_of(result.configurations, [](const Compared& one) {
    return one.change == Change::unclear && one.ratio && !one.busy;
  });
  const std::string counts = fmt::format(
      "B ({}) against A ({}): {} faster, {} slower, {} same, {} unclear, {} correct in A and "
      "neither correct nor skipped in B; {} configurations only in A, {} only in B{}",
      b.label, a.label, result.faster, result.slower, result.same, result.unclear, result.broken, result.only_a,
      result.only_b, wide ? "; more runs on each side narrow the intervals" : "");
  if (!given.json) print(wrapped(printable(with_one_unit(counts)), output_width(), 2));
  return result.regression() || bad ? 1 : 0;
}

/// A subcommand, and the function that runs it.
struct Command {
  CLI::App* app;
  std::function<int(const Arguments&)> run;
};

std::vector<Command> add_commands(CLI::App& app, Arguments& given) {
  std::vector<Command> commands;
  const auto command = [&](const char* name, const char* help, int (*run)(const Arguments&)) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->fallthrough();
    sub->get_formatter()->column_width(32);
    commands.push_back({sub, run});
    return sub;
  };
  const auto text = [](CLI::App* sub, const char* name, std::string& target, const char* type, const char* help) {
    return sub->add_option(name, target, help)->type_name(type);
  };
  const auto list = [](CLI::App* sub, const char* name, std::vector<std::string>& target, const char* help) {
    return sub->add_option(name, target, help)->type_name("");
  };
  const auto filters = [&](CLI::App* sub, bool kinds) {
    text(sub, "--device", given.filter.device, "D", "only records of devices whose name contains D");
    text(sub, "--proto", given.filter.experiment, "P", "only records of experiments whose name begins with P: proto1");
    number_option(*sub, "--min-confidence", given.filter.min_confidence, 0.0, 1.0, "C",
                  "only records with this confidence or more, 0 to 1");
    if (kinds) text(sub, "--kind", given.filter.kind, "K", "only finding, measurement, note or run");
    number_option(*sub, "--limit", given.filter.limit, int64_t{1}, INT64_MAX, "N", "at most N records");
  };

  CLI::App* sub =
      command("ingest", "add the sound lines of each FILE that can be read to its end; skip known records", run_ingest);
  list(sub, "FILE", given.files,
       "measurements.jsonl, findings.jsonl, a recorded run (.jsonl.gz), or '-' for stdin (default); plain or gzip");

  sub = command("add", "add a note by hand", run_add);
  text(sub, "DOMAIN", given.note.domain, "", "the field of knowledge, e.g. attention_kernels")->required();
  text(sub, "TOPIC", given.note.topic, "", "the subject of the note")->required();
  text(sub, "CLAIM", given.note.claim, "", "the claim, a sentence")->required();
  text(sub, "EVIDENCE", given.note.evidence, "", "the evidence for the claim");
  text(sub, "URL", given.note.url, "", "address of the source");
  text(sub, "TITLE", given.note.title, "", "title of the source");
  text(sub, "TYPE", given.note.type, "", "type of the source: academic_paper, benchmark, blog_post, ...");
  text(sub, "CONFIDENCE", given.confidence, "", "0 to 1, or verified, high, medium, low, unverified; default 0.5");
  text(sub, "TAGS", given.tags, "", "words, separated by commas");

  sub = command("search", "findings and notes with all the words, best first; WORD* matches words that begin with WORD",
                run_search);
  list(sub, "QUERY", given.words, "words as the records have them: d128, bf16, flash_attention, head_dim=64")
      ->required();
  filters(sub, false);

  sub = command("show", "print one record of the knowledge base, or else of findings/recorded", run_show);
  text(sub, "ID", given.id, "", "the id of a record, or its first digits; or the claim_key of a finding")->required();

  sub = command("list", "print one line per record, in order of arrival", run_list);
  filters(sub, true);

  command("stats", "print numbers of records by kind, verdict, device and so on", run_stats);
  command("topics",
          "print each hypothesis and each topic of notes, with the numbers of its findings, verdicts and notes",
          run_topics);

  sub =
      command("verify",
              "render every finding's text again, compute verdicts and confidence again, check ids, schema and units; "
              "list contradicting findings, and findings whose kernels have changed since the measurement",
              run_verify);
  list(sub, "FILE", given.files, "check these record files in place of the knowledge base");
  sub->add_flag("--strict", given.strict, "exit 1 also for contradictions and stale findings");

  sub = command("check", "check record files that another program wrote: one line per bad record", run_check);
  list(sub, "FILE", given.files, "record files")->required();

  sub = command(
      "pool",
      "print each claim's figure and verdict, pooled over the runs that have the code and the conditions of the "
      "claim's latest run, as JSON lines",
      run_pool);
  list(sub, "FILE", given.files, "pool these record files in place of the knowledge base");

  sub = command("advice",
                "print the advice of those pooled claims of which at most 5 % are expected to have a wrong verdict",
                run_advice);
  text(sub, "POOLED", given.a, "",
       "use the claims of this file of kb pool, '-' for stdin, in place of the knowledge base");
  text(sub, "--device", given.filter.device, "D", "only claims about devices whose name contains D");
  text(sub, "--proto", given.filter.experiment, "P", "only claims of experiments whose name begins with P: proto1");

  sub = command("fit",
                "fit the spread between runs to recorded runs, per device, experiment and kind of figure; "
                "write findings/spread.json, which new runs read",
                run_fit);
  list(sub, "FILE", given.files, "record files; default: findings/recorded of the source tree");
  text(sub, "--out", given.out, "FILE",
       "write this file in place of findings/spread.json; '-' is stdout; required if a FILE is named");

  sub = command("dedup", "list records that are stored several times under different ids", run_dedup);
  sub->add_flag(
      "--apply", given.apply,
      "remove duplicates; keep the record with the highest confidence, or of several such records the last to arrive");

  sub = command("export", "print records for other programs", run_export);
  text(sub, "--format", given.format, "F",
       "jsonl (default): the original lines\nmd: findings for readers\ncsv: for spreadsheets\n"
       "gpu-forge: kb add commands for the published study's knowledge base");
  text(sub, "--skill", given.skill, "S", "with gpu-forge: the SKILL to add findings to; default gpu-perf");
  filters(sub, true);

  sub = command("cite", "print findings as citations", run_cite);
  list(sub, "ID", given.ids, "ids, or their first digits")->required();

  sub = command(
      "compare",
      "say for each configuration (case of an experiment) if B is FASTER, SLOWER, the SAME or UNCLEAR. Exit 1 if "
      "a configuration is slower in B, or correct in A and neither correct nor skipped in B",
      run_compare);
  text(sub, "A", given.a, "", "folder or file of records, device or commit")->required();
  text(sub, "B", given.b, "", "folder or file of records, device or commit")->required();
  text(sub, "--by", given.by, "WHAT",
       "what A and B name: file (default; also a folder), or device or commit of the knowledge base");
  number_option(*sub, "--floor", given.floor_percent, 0.0, 100.0, "PERCENT",
                "differences up to PERCENT (default 2) count as noise. If the findings of the records have a\n"
                "higher noise floor, the higher floor counts");
  text(sub, "--proto", given.filter.experiment, "P",
       "with --by device or commit: only experiments whose name begins with P");
  return commands;
}

void check_arguments(Arguments& given) {
  if (!given.filter.kind.empty()) one_of("--kind", given.filter.kind, {"finding", "measurement", "note", "run"});
  if (given.format.empty()) given.format = "jsonl";
  one_of("--format", given.format, {"jsonl", "md", "csv", "gpu-forge"});
  one_of("--by", given.by, {"file", "device", "commit"});
}

int run_command(int argc, const char* const* argv) {
  Arguments given;
  CLI::App app(summary, "kb");
  app.get_formatter()->column_width(32);
  app.footer(footer);
  add_help_and_version(app);
  app.add_option("--db", given.db, "the knowledge base's file, see DATABASE")->type_name("FILE");
  app.add_flag("--json", given.json, "JSON lines in place of text");
  app.require_subcommand(0, 1);  // run_command() refuses a line without a command
  const std::vector<Command> commands = add_commands(app, given);
  if (!parse_command_line(app, argc, argv)) return 0;
  check_arguments(given);
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run(given);
  }
  throw BadInput("name a command; --help lists them");
}

/// Throws the exception that run_program() reports for an error of the database. If the user can do something about the
/// error, the message says what.
[[noreturn]] void explain(const SqlError& error) {
  switch (error.code) {
    case SQLITE_CORRUPT:
      throw BadInput(fmt::format("{}; the file is damaged: ingest the record files into a new one", error.what()));
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      throw BadInput(fmt::format(
          "{}; FILE, FILE-wal, FILE-shm and their folder must be writable; --db or KB_DB names another file",
          error.what()));
    case SQLITE_BUSY:
      throw std::runtime_error(
          fmt::format("{}: another process has been writing for a long time; try again later", error.what()));
    default:
      throw error;
  }
}

}  // namespace

int run_kb(int argc, const char* const* argv) {
  return run_program("kb", [&] {
    try {
      return run_command(argc, argv);
    } catch (const Interrupted&) {
      to_stderr("kb: interrupted; nothing is kept of the file that was being ingested\n");
      return 130;
    } catch (const SqlError& error) {
      explain(error);
    }
  });
}

}  // namespace attn::kb
