// The knowledge base: one SQLite file with every record as the line it came as, columns to select by, and a full-text
// index over what can be read.
#pragma once

#include <functional>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/records/finding.h"
#include "findings/kb/sqlite.h"

namespace attn::kb {

/// $KB_DB, else $XDG_DATA_HOME/attention-proto/kb.sqlite, else ~/.local/share/attention-proto/kb.sqlite. Throws
/// BadInput where none of these is set.
std::string default_path();

/// What to select; what is empty selects everything.
struct Filter {
  std::string kind = {};        // finding, measurement or note
  std::string device = {};      // a part of the device's name, case ignored
  std::string experiment = {};  // how its name begins: "proto1"
  double min_confidence = 0;
  int64_t limit = -1;  // negative: no limit
};

/// A record as it is kept.
struct Record {
  int64_t number = 0;  // order of arrival
  std::string id, kind, experiment, device, domain, topic, claim_key, state, ts, title, line;
  double confidence = 0;
  Json json() const { return Json::parse(line); }
};

struct Match {
  Record record;
  double score = 0;     // bm25, the larger the better
  std::string snippet;  // of the content
};

struct BadLine {
  int64_t line;
  std::string problem;
};

struct Ingested {
  int64_t lines = 0, added = 0, known = 0;
  std::vector<BadLine> bad;
};

/// Called now and then with the bytes read so far. Returning false ends the ingestion, and nothing of it is kept.
using IngestProgress = std::function<bool(size_t bytes)>;

/// The id of a line by its own rule: SHA-256 over the line without `"id":"...",`, first 16 digits.
std::string id_of_line(std::string_view line, const std::string& id);

/// A note as `kb add` makes it, with its id.
struct Note {
  std::string domain, topic, claim, evidence, url, title, type;
  double confidence = 0.5;
  std::vector<std::string> tags;
};
Json to_json(const Note& note);

class Store {
 public:
  enum class Mode { read, write };
  /// Mode::write makes the file and its folder where they are not there. ":memory:" is a store of its own. Throws
  /// BadInput for a file that is not there or no knowledge base, SqlError.
  static Store open(const std::string& path, Mode mode);

  /// All lines in one transaction: every sound line is added, or was known; of a bad one the number is kept. Nothing at
  /// all is kept where it throws (SqlError, Interrupted).
  Ingested ingest(std::istream& lines, const IngestProgress& progress = {});
  /// Whether it was new.
  bool add(const Json& record);

  std::vector<Match> search(const std::string& query, const Filter& filter) const;
  /// In order of arrival.
  std::vector<Record> list(const Filter& filter) const;
  /// The one record whose id begins so. Throws BadInput where there is none or more than one.
  Record find(const std::string& id) const;
  std::optional<Record> exact(const std::string& id) const;
  /// In one transaction.
  void remove(const std::vector<std::string>& ids);
  Json stats() const;
  /// domain, experiment, topic and what is known of it.
  std::vector<Json> topics() const;
  const std::string& path() const { return path_; }

 private:
  Store(std::string path, Database database) : path_(std::move(path)), database_(std::move(database)) {}
  enum class Insertion { added, known, differs };
  Insertion insert(const Json& record, std::string_view line);

  std::string path_;
  Database database_;
};

/// Ends an ingestion after SIGINT or SIGTERM.
struct Interrupted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace attn::kb
