#include "findings/kb/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/standard_streams.h"
#include "common/base/text_table.h"
#include "common/records/case_table.h"
#include "common/records/decisions.h"
#include "common/records/recorded.h"
#include "common/records/spread.h"
#include "common/records/statistics.h"
#include "common/source/kernel_source.h"
#include "findings/kb/check.h"
#include "findings/kb/compare.h"
#include "findings/kb/export.h"
#include "findings/kb/pooled_claims.h"
#include "findings/kb/published.h"
#include "findings/kb/record_input.h"
#include "findings/kb/runs.h"
#include "findings/kb/tables.h"
#include "findings/kb/verify.h"

namespace attn::kb {
namespace {

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

void print(const Json& json) { print(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"); }

using Rows = std::vector<std::vector<std::string>>;

std::string joined_text(const Json& words) {
  return fmt::format("{}", fmt::join(words.get<std::vector<std::string>>(), " "));
}

Store open(const Arguments& given, Store::Mode mode) {
  const std::string path = given.db.empty() ? default_path() : given.db;
  if (path == ":memory:" || path.starts_with("file:")) {
    throw BadInput(
        fmt::format("'{}': SQLite takes this name for a database that is no plain file; --db and KB_DB take the path "
                    "of a file, such as ./kb.sqlite",
                    path));
  }
  return Store::open(path, mode);
}

Store open_to_read(const Arguments& given) { return open(given, Store::Mode::read); }

/// Ingests a whole file, or stdin for "-", into the store. Reports bad lines on stderr.
Ingested ingest(Store& store, const std::string& name) {
  // A file that is no file of records, such as a log, may have very many bad lines.
  constexpr size_t most_shown = 10, most_bad = 100'000;
  const std::string place = name == "-" ? "stdin" : name;
  RecordInput file(name);
  const Ingested result = store.ingest(file, [&](size_t bad) {
    if (bad > most_bad)
      throw BadInput(fmt::format("{}: has more than {} bad lines; name a file of records", place, most_bad));
    return !stopped;
  });
  for (size_t i = 0; i < std::min(result.bad.size(), most_shown); ++i) {
    const auto& [line, problem] = result.bad[i];
    to_stderr(fmt::format("kb: {}\n", printable(fmt::format("{}: line {}: {}", place, line, problem))));
  }
  if (result.bad.size() > most_shown)
    to_stderr(fmt::format("kb: {}: and {} more bad lines\n", printable(place), result.bad.size() - most_shown));
  return result;
}

/// A new store in memory with the records of files. Sets `bad` if a file has a bad line.
Store of_files(const std::vector<std::string>& files, bool& bad) {
  Store store = Store::open(":memory:", Store::Mode::write);
  for (const std::string& file : files) bad |= !ingest(store, file).bad.empty();
  return store;
}

/// The store of the files that the user names, or else the knowledge base.
Store files_or_base(const Arguments& given, bool& bad) {
  return given.files.empty() ? open_to_read(given) : of_files(given.files, bad);
}

Json bad_lines(const Ingested& ingested) {
  Json lines = Json::array();
  for (const auto& [line, problem] : ingested.bad) lines.push_back({{"line", line}, {"problem", problem}});
  return lines;
}

Json summary_of(const Record& record) {
  Json json = {{"id", record.id},         {"kind", record.kind},   {"experiment", record.experiment},
               {"device", record.device}, {"topic", record.topic}, {"state", record.state}};
  if (record.kind == "run") json["run"] = record.run_id();
  if (record.kind == "measurement") json["case"] = record.json().at("case");
  if (record.kind == "finding") {
    json["wrong"] = record.wrong;
    json["title"] = record.title;
  }
  json["ts"] = record.ts;
  return json;
}

std::string headline(const Record& record) {
  if (record.kind == "finding") return printable(record.title);
  const Json json = record.json();
  return printable(record.kind == "run" ? fmt::format("{}: {}", record.run_id(), joined_text(json.at("run").at("argv")))
                                        : Case::from_json(json.at("case")).key());
}

/// Returns the record of the knowledge base, else of findings/recorded of the source tree.
Record find_record(const Arguments& given, const std::string& id) {
  try {
    return open_to_read(given).find(id);
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

/// A row of `kb show`: `text` is a template for render(). A record without the values of the template has no such row.
struct Shown {
  std::string_view kind;
  const char *name, *text;
};
constexpr Shown shown_rows[] = {
    {"finding", "title", "{title}"},
    {"finding", "content", "{content}"},
    {"finding", "claim",
     "{data.hypothesis.text} {data.hypothesis.metric} {data.hypothesis.op} {data.hypothesis.threshold}"},
    {"finding", "origin", "{data.hypothesis.origin}"},
    {"finding", "verdict", "{data.verdict.state}: {data.verdict.reason}"},
    {"finding", "wrong", "{wrong}"},
    {"finding", "estimate",
     "{data.estimate.value:.4g}, next run [{data.estimate.next_lo:.4g}, {data.estimate.next_hi:.4g}], "
     "{data.estimate.processes} processes, {data.estimate.sessions} sessions"},
    {"finding", "device", "{data.device}"},
    {"finding", "subject", "{data.subject}"},
    {"finding", "baseline", "{data.compare.baseline}"},
    {"finding", "contender", "{data.compare.contender}"},
    {"finding", "noise floor", "{data.compare.aa_floor:.2g}"},
    {"finding", "measurements", "{data.measurements}"},
    {"finding", "run", "{data.run}; its header (run/1) is not in the knowledge base"},
    {"finding", "run", "{data.run.id}, {data.run.ts}"},
    {"finding", "commit", "{data.env.git.commit}; changed: {data.env.git.dirty}"},
    {"finding", "command", "{data.run.argv}"},
    {"finding", "replay", "{data.run.replay}"},
    {"finding", "tags", "{tags}"},
    {"measurement", "experiment", "{experiment}"},
    {"measurement", "device", "{device}"},
    {"measurement", "case", "{case}"},
    {"measurement", "status", "{status}"},
    {"measurement", "reason", "{reason}"},
    {"measurement", "rate", "{rate.tflops:.4g} TFLOP/s, {rate.gbps:.4g} GB/s"},
    {"measurement", "pipeline", "{pipeline.key}"},
    {"measurement", "run", "{run_id}, {run.ts}"},
    {"run", "experiment", "{experiment}"},
    {"run", "device", "{env.device.name}, {env.device.units} units"},
    {"run", "run", "{run.id}, {run.ts}"},
    {"run", "command", "{run.argv}"},
    {"run", "commit", "{env.git.commit}; changed: {env.git.dirty}"},
    {"run", "version", "{env.version}"},
    {"run", "toolchain", "{env.device.toolchain}"},
    {"run", "replay", "{run.replay}"}};

/// Makes a text of each list of texts, so that render() takes it.
void join_texts(Json& json) {
  if (json.is_array() && !json.empty() && json[0].is_string()) json = joined_text(json);
  if (!json.is_structured()) return;
  for (Json& inner : json) join_texts(inner);
}

/// Adds a row for each number and text within `json`. Its name has the keys that lead to it.
void add_counts(const std::string& name, const Json& json, Rows& rows) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) add_counts(name.empty() ? key : name + "/" + key, value, rows);
  } else {
    rows.push_back({printable(with_one_unit(name)), json.is_string() ? json.get<std::string>() : json.dump()});
  }
}

/// Returns whether `part` occurs in a device's name. Case does not matter.
bool has_part(const std::string& device, const std::string& part) {
  const auto equal = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
  return std::search(device.begin(), device.end(), part.begin(), part.end(), equal) != device.end() || part.empty();
}

Side side_of_files(const std::string& path, bool& bad) { return {path, of_files(record_files(path), bad).list({})}; }

Side side_of_device(const std::vector<Record>& records, const std::string& device) {
  // A part of a device's name is enough if only one device with measurements has this part in its name. Findings do not
  // count here: a finding that compares two devices has both names in its `device`, which is the name of no device.
  std::set<std::string> matching;
  for (const Record& record : records) {
    if (record.device == device) matching = {device};
    if (matching.contains(device)) break;
    if (record.kind == "measurement" && has_part(record.device, device)) matching.insert(record.device);
  }
  if (matching.empty())
    throw BadInput(fmt::format("{}: there are no measurements of that device; kb stats lists devices", device));
  if (matching.size() > 1) {
    throw BadInput(fmt::format("{}: several devices have this text in their names: '{}'; give more of the name", device,
                               with_one_unit(fmt::format("{}", fmt::join(matching, "', '")))));
  }
  Side side{*matching.begin(), {}};
  std::ranges::copy_if(records, std::back_inserter(side.records),
                       [&](const Record& record) { return record.device == side.label; });
  return side;
}

}  // namespace

int run_ingest(const Arguments& given) {
  std::vector<std::string> files = given.files;
  if (files.empty()) {
    if (isatty(STDIN_FILENO)) throw BadInput("ingest: name a FILE, or '-' to type records");
    files = {"-"};
  }
  Store store = open(given, Store::Mode::write);
  heed_signals();
  bool bad = false;
  for (const std::string& file : files) {
    const Ingested result = ingest(store, file);
    bad |= !result.bad.empty();
    if (given.json) {
      print(Json{{"file", file},
                 {"lines", result.lines},
                 {"added", result.added},
                 {"known", result.known},
                 {"bad", bad_lines(result)},
                 {"db", store.path()}});
    } else {
      print(fmt::format("{}: {} added, {} known already, {} bad, of {} lines; {}\n", file, result.added, result.known,
                        result.bad.size(), result.lines, store.path()));
    }
  }
  return bad ? 1 : 0;
}

int run_search(const Arguments& given) {
  const std::string query = fmt::format("{}", fmt::join(given.words, " "));
  const auto matches = open_to_read(given).search(query, given);
  for (const auto& [record, score, snippet] : matches) {
    if (given.json) {
      Json json = summary_of(record);
      json["score"] = score;
      json["snippet"] = snippet;
      print(json);
      continue;
    }
    print(fmt::format("{}  {} {} {}  {}\n    {}\n", record.id, record.experiment,
                      printable(record.topic + " " + record.state), wrong_text(record),
                      printable(fmt::format("{} ({})", record.title, with_one_unit(record.device))),
                      printable(snippet)));
  }
  if (matches.empty() && !given.json)
    to_stderr(fmt::format("kb: no finding has all these words: {}\n", printable(query)));
  return 0;
}

int run_show(const Arguments& given) {
  const Record record = find_record(given, given.id);
  if (given.json) {
    print(record.line + "\n");
    return 0;
  }
  Json json = record.joined();
  join_texts(json);
  for (const char* const place : {"/case", "/data/compare/baseline", "/data/compare/contender"}) {
    if (const Json config = value_at(json, place); config.is_object())
      json[Json::json_pointer(place)] = Case::from_json(config).key();
  }
  if (record.kind == "finding") json["wrong"] = wrong_text(record);
  Rows rows = {{"id", record.id}, {"kind", record.kind}};
  const auto add = [&](const std::string& name, const char* text, const Json& data) {
    try {
      if (const std::string row = render(text, data); !row.empty())
        rows.push_back({name, printable(with_one_unit(row))});
    } catch (const std::out_of_range&) {  // the record lacks a value of the template
    }
  };
  for (const Shown& row : shown_rows) {
    if (row.kind == record.kind) add(row.name, row.text, json);
  }
  for (const Json& time : record.kind == "measurement" ? json["time"] : Json::array()) {
    add(time["scope"], "{median_s:.4g} s [{ci_lo_s:.4g}, {ci_hi_s:.4g}], {n} samples, CV {cv:.2g}", time);
  }
  print(text_table(rows, Align::left));
  return 0;
}

int run_list(const Arguments& given) {
  Rows rows;
  for (const Record& record : open_to_read(given).list(given)) {
    if (given.json) {
      print(summary_of(record));
    } else {
      rows.push_back({record.id, record.kind,
                      printable(record.experiment + (record.topic.empty() ? "" : "/" + record.topic)), record.state,
                      wrong_text(record), printable(with_one_unit(record.device)), headline(record)});
    }
  }
  print(text_table(rows, Align::left));
  return 0;
}

int run_stats(const Arguments& given) {
  const Json stats = open_to_read(given).stats();
  if (given.json) {
    print(stats);
    return 0;
  }
  Rows rows;
  add_counts("", stats, rows);
  print(text_table(rows, Align::left));
  return 0;
}

int run_verify(const Arguments& given) {
  bool bad = false;
  const Store store = files_or_base(given, bad);
  const Verification result = verify(store);
  const bool contradicts = result.count(Opposition::contradiction) > 0;
  if (given.json) {
    const auto list = [](const std::vector<Problem>& problems) {
      Json json = Json::array();
      for (const auto& [id, text] : problems) json.push_back({{"id", id}, {"text", text}});
      return json;
    };
    const auto opposed = [&](Opposition why) {
      Json json = Json::array();
      for (const OpposedClaim& claim : result.opposed) {
        if (claim.why != why) continue;
        Json findings = Json::array();
        for (const Record& finding : claim.findings) findings.push_back(summary_of(finding));
        json.push_back({{"claim_key", claim.claim_key}, {"findings", findings}});
      }
      return json;
    };
    print(Json{{"records", result.records},
               {"problems", list(result.problems)},
               {"contradictions", opposed(Opposition::contradiction)},
               {"spread", opposed(Opposition::spread)},
               {"changed", opposed(Opposition::changed)},
               {"stale", list(result.stale)},
               {"fresh", result.fresh},
               {"superseded", result.superseded},
               {"unknown", result.unknown}});
  } else {
    for (const auto& [id, text] : result.problems) print(fmt::format("PROBLEM  {}  {}\n", id, printable(text)));
    for (const OpposedClaim& claim : result.opposed) {
      if (claim.why != Opposition::contradiction) continue;
      print(fmt::format("CONTRADICTION  {}\n", printable(claim.claim_key)));
      for (const Record& finding : claim.findings)
        print(fmt::format("    {}  {}  {}  {}\n", finding.id, finding.ts, finding.state, printable(finding.title)));
    }
    for (const auto& [id, text] : result.stale) print(fmt::format("STALE  {}  {}\n", id, printable(text)));
    print(fmt::format(
        "claims with supported and refuted findings: {} explained by the spread between runs, {} "
        "explained by other code or conditions, {} contradictions\n",
        result.count(Opposition::spread), result.count(Opposition::changed), result.count(Opposition::contradiction)));
    print(
        fmt::format("{} records: {} problems, {} contradictions; findings of today's kernels {}, superseded {}, "
                    "stale {}, not known {}\n",
                    result.records, result.problems.size(), result.count(Opposition::contradiction), result.fresh,
                    result.superseded, result.stale.size(), result.unknown));
  }
  if (given.strict) bad |= contradicts || !result.stale.empty();
  return bad || !result.problems.empty() ? 1 : 0;
}

int run_check(const Arguments& given) {
  size_t records = 0, bad = 0;
  for (const std::string& file : given.files) {
    Store store = Store::open(":memory:", Store::Mode::write);
    const Ingested ingested = ingest(store, file);
    Json found = bad_lines(ingested);
    for (const Record& record : store.list({})) {
      ++records;
      const std::vector<std::string> problems = verify_record(record, record.json());
      if (problems.empty()) continue;
      const std::string text = first_of(problems);
      found.push_back({{"id", record.id}, {"problem", text}});
      if (!given.json) print(fmt::format("{}: {}: {}\n", file, record.id, printable(text)));
    }
    records += ingested.bad.size();
    bad += found.size();
    if (given.json) print(Json{{"file", file}, {"lines", ingested.lines}, {"bad", found}});
  }
  if (!given.json) print(fmt::format("{} of {} records are sound\n", records - bad, records));
  return bad == 0 ? 0 : 1;
}

int run_pool(const Arguments& given) {
  if (given.loaded && !given.out.empty())
    throw BadInput("pool: --decisions leaves loaded runs out, --loaded the others");
  bool bad = false;
  const std::vector<Record> records = files_or_base(given, bad).list({});
  const std::vector<Json> claims = pooled_claims(records, given.loaded, published_statements(source_root()));
  for (const Json& claim : claims) print(claim);
  if (given.out.empty()) return bad ? 1 : 0;
  std::string text;
  for (const Json& table : decision_tables(records, claims)) text += table.dump() + "\n";
  if (!PendingFile(given.out).write(text)) throw std::runtime_error(fmt::format("{}: cannot be written", given.out));
  return bad ? 1 : 0;
}

int run_decisions(const Arguments& given) {
  bool bad = false;
  bool told = given.json;
  const std::vector<Record> records = files_or_base(given, bad).list({});
  for (const Json& table : decision_tables(records, pooled_claims(records))) {
    const std::string device = table.at("device");
    const bool wanted = has_part(device, given.device) &&
                        table.at("experiment").get_ref<const std::string&>().starts_with(given.experiment);
    if (!wanted) continue;
    if (given.json) {
      print(table);
    } else if (!table.at("rows").empty() || table.at("left_out") > 0) {
      print(printable(with_one_unit(device)) + ": " + decisions_text(table, output_width(), SIZE_MAX));
      told = true;
    }
  }
  if (!told) print(std::string("no record answers a question\n"));
  return bad ? 1 : 0;
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
  bool bad = false;
  const Json fitted = fit_spreads(of_files(files, bad).list({}));
  const std::string text = given.json ? fitted.dump() + "\n" : spread_text(fitted);
  const std::string out = given.out.empty() ? own : given.out;
  if (out == "-") {
    print(text);
  } else if (!PendingFile(out).write(text)) {
    throw std::runtime_error(fmt::format("{}: cannot be written", out));
  } else if (!given.json) {
    print(fmt::format("{}: {} devices and kinds of device\n", out, fitted.at("spread").size()));
  }
  return bad ? 1 : 0;
}

int run_export(const Arguments& given) {
  if (given.json && given.format != "jsonl")
    throw BadInput(fmt::format("--json and --format {}: choose one", given.format));
  const std::vector<Record> records = open_to_read(given).list(given);
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

int run_compare(const Arguments& given) {
  bool bad = false;
  Side a, b;
  if (given.by == "file") {
    a = side_of_files(given.a, bad);
    b = side_of_files(given.b, bad);
  } else {
    const std::vector<Record> records = open_to_read(given).list(given);
    const auto side = [&](const std::string& name) {
      return given.by == "device" ? side_of_device(records, name) : Side{name, of_commit(records, name)};
    };
    a = side(given.a);
    b = side(given.b);
  }
  const Comparisons result = compare(a, b, given.floor_percent / 100);
  if (given.json) {
    for (const Compared& one : result.configurations) print(to_json(one));
  } else {
    print(printed(result.configurations));
  }
  for (const std::string& note : result.notes) {
    const std::string text = printable(with_one_unit(note));
    if (given.json) to_stderr(text + "\n");
    if (!given.json) print(wrapped(text, output_width(), 2));
  }
  const bool wide = std::ranges::any_of(result.configurations, [](const Compared& one) {
    return one.change == Change::unclear && one.ratio && one.busy_a.empty() && one.busy_b.empty();
  });
  const std::string counts = fmt::format(
      "B ({}) against A ({}): {} faster, {} slower, {} same, {} unclear, {} correct in A and "
      "neither correct nor skipped in B; {} configurations only in A, {} only in B{}",
      b.label, a.label, result.faster, result.slower, result.same, result.unclear, result.broken, result.only_a,
      result.only_b, wide ? "; more runs on each side narrow the intervals" : "");
  if (!given.json) print(wrapped(printable(with_one_unit(counts)), output_width(), 2));
  return result.regression() || bad ? 1 : 0;
}

int run_interval(const Arguments& given) {
  RecordInput file(given.file.empty() ? "-" : given.file);
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const Json question = parse_json(line, false);
    const auto asks_for = [&](const char* one, const char* other) {
      return value_at(question, one).is_number() && value_at(question, other).is_number();
    };
    try {
      if (asks_for("/count", "/total")) {
        const auto [low, high] = share_interval(question["count"], question["total"]);
        print(Json{{"ci_lo", low}, {"ci_hi", high}});
      } else if (asks_for("/probability", "/freedom")) {
        print(Json{{"quantile", student_quantile(question["probability"], question["freedom"])}});
      } else {
        throw std::invalid_argument("takes {\"count\": K, \"total\": N} or {\"probability\": P, \"freedom\": F}");
      }
    } catch (const std::invalid_argument& error) {
      throw BadInput(fmt::format("interval: line {}: {}", number, error.what()));
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace attn::kb
