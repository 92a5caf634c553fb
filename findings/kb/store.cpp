#include "findings/kb/store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/sha256.h"
#include "findings/kb/check.h"

namespace attn::kb {
namespace fs = std::filesystem;
namespace {

constexpr int64_t application_id = 0x41746b62;  // "Atkb", in the head of the file
constexpr int64_t layout_version = 4;           // 3: with confidence
// Another process may ingest a large file in one transaction.
constexpr int busy_timeout_ms = 60'000;
constexpr int most_depth = 64;                 // of a record
constexpr const char* in_memory = ":memory:";  // SQLite's name of a database without a file

// Names have underscores: block_r, flash_attention. So the tokenizer takes underscores for letters.
constexpr const char* layout = R"sql(
CREATE TABLE records(
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  kind TEXT NOT NULL,
  experiment TEXT NOT NULL,
  device TEXT NOT NULL,
  topic TEXT NOT NULL,
  claim_key TEXT NOT NULL,
  state TEXT NOT NULL,
  wrong REAL NOT NULL,
  ts TEXT NOT NULL,
  title TEXT NOT NULL,
  line TEXT NOT NULL);
CREATE INDEX records_claim ON records(claim_key);
CREATE VIRTUAL TABLE words USING fts5(title, content, tags, about, tokenize = "unicode61 tokenchars '_'");
)sql";

constexpr std::string_view columns =
    "records.number, id, kind, experiment, device, topic, claim_key, state, ts, records.title, line, wrong";

Record record_of(const Statement& row) {
  return {.number = row.integer(0),
          .id = row.text(1),
          .kind = row.text(2),
          .experiment = row.text(3),
          .device = row.text(4),
          .topic = row.text(5),
          .claim_key = row.text(6),
          .state = row.text(7),
          .ts = row.text(8),
          .title = row.text(9),
          .line = row.text(10),
          .wrong = row.real(11)};
}

/// A filter as a condition over `records`, with the parameters kind, device, experiment and wrong.
constexpr std::string_view condition =
    "(?1 = '' OR kind = ?1) AND (?2 = '' OR instr(lower(device), lower(?2)) > 0) AND "
    "(?3 = '' OR substr(experiment, 1, length(?3)) = ?3) AND wrong <= ?4";

/// An FTS5 expression that matches records with all words of the query. FTS5 never takes quoted words for syntax. A
/// word with a star at its end matches all words that begin with it.
std::string match_expression(const std::string& query) {
  constexpr std::string_view blanks(" \t\r\n\f\v\0", 7);  // SQLite reads an expression up to the first NUL
  std::string expression;
  size_t at = 0;
  while ((at = query.find_first_not_of(blanks, at)) != query.npos) {
    const size_t end = std::min(query.find_first_of(blanks, at), query.size());
    std::string word = query.substr(at, end - at);
    at = end;
    const bool prefix = word.size() > 1 && word.back() == '*';
    if (prefix) word.pop_back();
    const bool readable =
        std::any_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c >= 0x80; });
    if (!readable) continue;  // the index has no words that are only punctuation
    std::string quoted;
    for (const char c : word) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    expression += fmt::format("{}\"{}\"{}", expression.empty() ? "" : " ", quoted, prefix ? "*" : "");
  }
  return expression;
}

/// Further words by which a search finds a record, for example its device and "d128" for the head_dim 128.
std::string about(const Json& record, const std::vector<std::string>& tags) {
  std::string text = fmt::format("{} {} {}", text_at(record, "/data/device"), text_at(record, "/data/subject"),
                                 text_at(record, "/source"));
  for (std::string tag : tags) {
    std::replace(tag.begin(), tag.end(), '_', ' ');
    text += " " + tag;
  }
  std::set<std::string> values;
  for (const Json& config : record.value("/data/cases"_json_pointer, Json::array())) {
    for (const auto& [axis, value] : config.items()) {
      if (value.is_string()) values.insert(value.get<std::string>());
      if (axis == "head_dim") values.insert(fmt::format("d{}", value.dump()));
    }
  }
  return fmt::format("{} {} {} {}", text, fmt::join(values, " "), text_at(record, "/data/hypothesis/id"),
                     text_at(record, "/data/hypothesis/text"));
}

std::string key_of_run(const std::string& id) { return "run/" + id; }

template <typename Error = BadInput>
[[noreturn]] void no_store(const std::string& path, const std::string& why) {
  throw Error(fmt::format("{}: {}; name a knowledge base with --db or KB_DB, or make one with kb ingest", path, why));
}

/// Changes the database to write-ahead logging. The change needs a lock on the whole file, and SQLite does not wait for
/// this lock while other processes use the file.
void enter_wal(const Database& database) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(busy_timeout_ms);
  for (;;) {
    try {
      database.execute("PRAGMA journal_mode = WAL");
      return;
    } catch (const SqlError& error) {
      if (error.code != SQLITE_BUSY || std::chrono::steady_clock::now() > deadline) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

/// The URI by which SQLite opens a file without its write-ahead log. `path` must be absolute.
std::string immutable_uri(const std::string& path) {
  std::string uri = "file:";
  for (const char c : path) {
    uri += c == '%' ? "%25" : c == '?' ? "%3f" : c == '#' ? "%23" : std::string(1, c);
  }
  return uri + "?immutable=1";
}

Database open_database(const std::string& path, bool write) {
  // SQLite may take a name that begins with "file:" for a URI, but never an absolute path.
  const std::string file = path == in_memory ? path : fs::absolute(path).string();
  if (write) {
    Database database(file, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, busy_timeout_ms);
    if (database.read_only()) throw SqlError(fmt::format("{}: cannot be written", path), SQLITE_READONLY);
    return database;
  }
  // A reader, too, makes the files of the write-ahead log (FILE-wal, FILE-shm), and removes them if it may write the
  // database. Files left by a reader that may not write would belong to another user, and would keep the database's
  // owner from writing. So without FILE-wal such a reader opens the database without the log: the database is then
  // complete.
  std::error_code none;
  const fs::path log = file + "-wal";
  if (::access(file.c_str(), W_OK) == 0 || fs::exists(log, none)) {
    try {
      Database database(file, SQLITE_OPEN_READWRITE, busy_timeout_ms);  // read-only if the file cannot be written
      database.execute("PRAGMA query_only = 1");
      (void)database.integer("PRAGMA application_id");
      return database;
    } catch (const SqlError& error) {
      // In a folder that cannot be written, SQLite cannot make the log's files.
      const bool has_log = fs::exists(log, none) && fs::file_size(log, none) > 0;
      if ((error.code != SQLITE_CANTOPEN && error.code != SQLITE_READONLY) || has_log) throw;
    }
  }
  return {immutable_uri(file), SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, busy_timeout_ms};
}

}  // namespace

Json Record::joined() const {
  std::vector<Json> records;
  records.push_back(json());
  if (header) records.push_back(*header);
  join_runs(records);
  return std::move(records.front());
}

std::string Record::run_id() const { return run_id_of(json(), kind); }

std::string run_id_of(const Json& record, const std::string& kind) {
  if (kind == "measurement") return text_at(record, "/run_id");
  if (kind == "run") return text_at(record, "/run/id");
  const std::string run = text_at(record, "/data/run");
  return !run.empty() ? run : text_at(record, "/data/run/id");  // after join_runs()
}

std::string default_path() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string named = variable("KB_DB"); !named.empty()) return named;
  if (const std::string data = variable("XDG_DATA_HOME"); !data.empty()) return data + "/attention-proto/kb.sqlite";
  const std::string home = variable("HOME");
  if (home.empty()) throw BadInput("HOME is not set; name a knowledge base with --db or KB_DB");
  return home + "/.local/share/attention-proto/kb.sqlite";
}

std::string id_of_line(std::string_view line, const std::string& id) {
  const std::string field = fmt::format("\"id\":\"{}\",", id);
  std::string rest(line);
  if (const size_t at = rest.find(field); at != rest.npos) {
    rest.erase(at, field.size());
    return sha256(rest).substr(0, 16);
  }
  // Another program may have written the record with blanks. The id then follows from the line that RecordFile would
  // write.
  const Json record = parse_json(line, false);
  return record.is_object() ? record_id(record) : std::string();
}

Store Store::open(const std::string& path, Mode mode) {
  const bool memory = path == in_memory;
  const bool write = mode == Mode::write || memory;
  if (!memory) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) no_store(path, "is a folder");
    if (fs::is_other(status)) no_store(path, "is no plain file");
    if (!fs::status_known(status)) no_store(path, fmt::format("cannot be read: {}", error.message()));
    if (fs::exists(status)) {
      if (::access(path.c_str(), R_OK) != 0) no_store(path, fmt::format("cannot be read: {}", std::strerror(errno)));
    } else {
      if (!write) no_store<NoSuchRecord>(path, "is not there");
      const fs::path folder = fs::absolute(path).parent_path();
      fs::create_directories(folder, error);
      if (error) {
        throw BadInput(fmt::format("{}: cannot be made: {}; --db or KB_DB names a file in another folder",
                                   folder.string(), error.message()));
      }
    }
  }
  try {
    Database database = open_database(path, write);
    const auto is_new = [&] {
      return database.integer("PRAGMA application_id") == 0 &&
             database.integer("SELECT count(*) FROM sqlite_master") == 0;
    };
    if (write && is_new()) {
      if (!memory) enter_wal(database);
      Transaction transaction(database);
      if (is_new()) {  // true unless another process has created the tables meanwhile
        database.execute(layout);
        database.execute(
            fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", application_id, layout_version)
                .c_str());
      }
      transaction.commit();
    }
    if (database.integer("PRAGMA application_id") != application_id) no_store(path, "is no knowledge base");
    const int64_t version = database.integer("PRAGMA user_version");
    if (version != layout_version) {
      no_store(path, fmt::format("has layout {}, this program knows {}", version, layout_version));
    }
    return {path, std::move(database)};
  } catch (const SqlError& error) {
    if (error.code == SQLITE_NOTADB) no_store(path, "is no knowledge base");
    throw;
  }
}

Store::Insertion Store::insert(const Json& record, std::string_view line) {
  const std::string schema = text_at(record, "/schema"), id = text_at(record, "/id");
  if (const auto known = first("id = ?1", id)) {
    // Another program may have written the same record with other blanks or another order of fields.
    const bool same = known->line == line || nlohmann::json::parse(known->line) == nlohmann::json::parse(line);
    return same ? Insertion::known : Insertion::differs;
  }

  const std::string kind = schema.substr(0, schema.find('/'));
  const bool finding = kind == "finding", of_a_run = kind == "run";
  const std::string run_id = text_at(record, finding ? "/data/run" : "/run/id");
  std::string ts = text_at(record, "/run/ts"), device = text_at(record, finding ? "/data/device" : "/device");
  if (finding) {
    if (const auto header = run(run_id)) ts = header->ts;
  }
  if (of_a_run) {
    const Json units = value_at(record, "/env/device/units");
    const std::string name = text_at(record, "/env/device/name");
    device = name.empty() ? text_at(record, "/run/device") : name;
    if (!name.empty() && units.is_number_integer()) device += fmt::format(", {} units", units.get<int64_t>());
  }
  Statement row = database_.prepare(
      "INSERT INTO records(id, kind, experiment, device, topic, claim_key, state, wrong, ts, title, line) "
      "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
  row.bind(id, kind, text_at(record, finding ? "/data/experiment" : "/experiment"), device,
           text_at(record, "/data/hypothesis/id"), of_a_run ? key_of_run(run_id) : text_at(record, "/claim_key"),
           text_at(record, finding ? "/data/verdict/state" : "/status"), finding ? wrong_of(record.at("data")) : 0.0,
           ts, text_at(record, "/title"), line);
  row.step();
  const int64_t number = database_.last_row();
  if (of_a_run) set_times(run_id, ts);
  if (!finding) return Insertion::added;

  const auto tags = record.at("tags").get<std::vector<std::string>>();
  Statement index = database_.prepare("INSERT INTO words(rowid, title, content, tags, about) VALUES(?, ?, ?, ?, ?)");
  index.bind(number, text_at(record, "/title"), text_at(record, "/content"), fmt::format("{}", fmt::join(tags, " ")),
             about(record, tags));
  index.step();
  return Insertion::added;
}

/// Sets the time of the run's findings that arrived before the header.
void Store::set_times(const std::string& run_id, const std::string& ts) {
  Statement change = database_.prepare("UPDATE records SET ts = ?2 WHERE number = ?1");
  for (const Record& record : select("kind = 'finding' AND ts = ''")) {
    if (record.run_id() != run_id) continue;
    change.bind(record.number, ts).step();
    change.reset();
  }
}

Ingested Store::ingest(std::istream& lines, const IngestProgress& progress) {
  Ingested result;
  Transaction transaction(database_);
  const auto refuse = [&](std::string problem) { result.bad.push_back({result.lines, std::move(problem)}); };
  std::string line;
  while (std::getline(lines, line)) {
    ++result.lines;
    const bool torn = lines.eof();
    if (progress && result.lines % 256 == 0 && !progress(result.bad.size())) throw Interrupted("interrupted");
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") == line.npos) continue;
    const Json record = parse_shallow_json(line, most_depth);
    if (record.is_discarded()) {
      refuse(torn ? "torn (the run ended before it had written the whole line)" : "no JSON");
      continue;
    }
    if (text_at(record, "/schema") == "samples/1") continue;
    if (const auto problems = check_schema(record); !problems.empty()) {
      refuse(first_of(problems));
      continue;
    }
    switch (insert(record, line)) {
      case Insertion::added:
        ++result.added;
        break;
      case Insertion::known:
        ++result.known;
        break;
      case Insertion::differs:
        refuse(fmt::format("another record in the knowledge base has the id {}", text_at(record, "/id")));
    }
  }
  if (lines.bad()) throw std::runtime_error("the input could not be read to its end; none of its records is kept");
  transaction.commit();
  return result;
}

std::vector<Match> Store::search(const std::string& query, const Filter& filter) const {
  const std::string expression = match_expression(query);
  if (expression.empty()) return {};
  // A hit in the title weighs more than a hit in the content.
  Statement rows = database_.prepare(
      fmt::format("SELECT {}, bm25(words, 8.0, 4.0, 4.0, 1.0) AS score, snippet(words, 1, '[', ']', ' .. ', 32) "
                  "FROM words JOIN records ON records.number = words.rowid "
                  "WHERE words MATCH ?6 AND {} ORDER BY score, records.number LIMIT ?5",
                  columns, condition));
  rows.bind(filter.kind, filter.device, filter.experiment, filter.max_wrong, filter.limit, expression);
  std::vector<Match> matches;
  while (rows.step()) matches.push_back({record_of(rows), -rows.real(12), rows.text(13)});
  return matches;
}

template <typename... Values>
std::vector<Record> Store::select(std::string_view where, const Values&... values) const {
  Statement rows = database_.prepare(fmt::format("SELECT {} FROM records WHERE {}", columns, where));
  rows.bind(values...);
  std::vector<Record> records;
  while (rows.step()) records.push_back(record_of(rows));
  return records;
}

std::optional<Record> Store::first(std::string_view where, const std::string& value) const {
  std::vector<Record> found = select(fmt::format("{} LIMIT 1", where), value);
  return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
}

std::vector<Record> Store::list(const Filter& filter) const {
  std::vector<Record> records = select(fmt::format("{} ORDER BY number LIMIT ?5", condition), filter.kind,
                                       filter.device, filter.experiment, filter.max_wrong, filter.limit);
  add_headers(records);
  return records;
}

std::optional<Record> Store::run(const std::string& id) const {
  return first("claim_key = ?1 AND kind = 'run' ORDER BY number", key_of_run(id));
}

void Store::add_headers(std::vector<Record>& records) const {
  std::map<std::string, std::shared_ptr<const Json>> headers;
  for (Record& record : records) {
    if (record.kind != "finding") continue;
    const std::string id = record.run_id();
    const auto [place, added] = headers.try_emplace(id);
    if (added) {
      if (const auto header = run(id)) place->second = std::make_shared<const Json>(header->json());
    }
    record.header = place->second;
  }
}

Record Store::find(const std::string& id) const {
  std::vector<Record> found;
  if (id.find('/') != id.npos) {
    found = select("claim_key = ?1 AND kind = 'finding' ORDER BY ts DESC, number DESC LIMIT 1", id);
    if (found.empty()) throw BadInput(fmt::format("{}: no finding has this claim_key; kb pool prints the keys", id));
  } else if (id.empty() || id.size() > 16 || id.find_first_not_of("0123456789abcdef") != id.npos) {
    throw BadInput(fmt::format("'{}' is no id; an id has up to 16 hex digits", id));
  } else {
    // 'g' sorts after all hex digits, so the range has all ids that begin with ?1.
    found = select("id >= ?1 AND id < ?1 || 'g' LIMIT 2", id);
    if (found.empty())
      throw NoSuchRecord(fmt::format("{}: no record has an id that begins with these digits; kb list shows ids", id));
    if (found.size() > 1)
      throw BadInput(fmt::format("{}: the ids of several records begin with these digits; give more digits", id));
  }
  add_headers(found);
  return found.front();
}

Json Store::stats() const {
  const auto counts = [&](const char* column, const char* where) {
    Json result = Json::object();
    Statement rows = database_.prepare(
        fmt::format("SELECT {0}, count(*) FROM records WHERE {1} GROUP BY {0} ORDER BY {0}", column, where));
    while (rows.step()) result[rows.text(0)] = rows.integer(1);
    return result;
  };
  return {{"db", path_},
          {"size_bytes", database_.integer("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")},
          {"records", counts("kind", "true")},
          {"findings",
           {{"by_verdict", counts("state", "kind = 'finding'")},
            {"by_experiment", counts("experiment", "kind = 'finding'")},
            {"by_device", counts("device", "kind = 'finding'")}}},
          {"measurements",
           {{"by_status", counts("state", "kind = 'measurement'")},
            {"by_experiment", counts("experiment", "kind = 'measurement'")},
            {"by_device", counts("device", "kind = 'measurement'")}}}};
}

}  // namespace attn::kb
