// The knowledge base: one SQLite file with the original line of every record, columns for selection, and a full-text
// index of findings.
#pragma once

#include <functional>
#include <istream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/records/finding.h"
#include "findings/kb/record_input.h"
#include "findings/kb/sqlite.h"

namespace attn::kb {

/// Returns $KB_DB, else $XDG_DATA_HOME/attention-proto/kb.sqlite, else $HOME/.local/share/attention-proto/kb.sqlite.
/// Throws BadInput if none of these variables is set.
std::string default_path();

/// A selection of records. An empty field selects everything.
struct Filter {
  std::string kind = {};        // finding, measurement or run
  std::string device = {};      // a part of the device's name; case does not matter
  std::string experiment = {};  // the beginning of the experiment's name: "proto1"
  double max_wrong = 1;         // of a finding
  int64_t limit = -1;           // negative: no limit
};

struct Record {
  int64_t number = 0;  // order of arrival
  // `topic` of a finding is the id of its hypothesis. `state` is a finding's verdict or a measurement's status.
  std::string id, kind, experiment, device, topic, claim_key, state, ts, title, line;
  double wrong = 0;                         // of a finding: wrong() of its estimate (common/records/claim.h)
  std::shared_ptr<const Json> header = {};  // the run's header (run/1), for a finding; null if missing
  Json json() const { return parse_json(line); }
  /// For a finding, adds the objects data.run and data.env from `header`.
  Json joined() const;
  /// The id of the record's run.
  std::string run_id() const;
  bool exact() const { return kind == "finding" && wrong == 0 && is_exact(json().at("data").at("estimate")); }
};

/// `kind` is the record's kind: "finding", "measurement" or "run".
std::string run_id_of(const Json& record, const std::string& kind);

/// The knowledge base lacks a record with this id, or is not there.
struct NoSuchRecord : BadInput {
  using BadInput::BadInput;
};

struct Match {
  Record record;
  double score = 0;     // bm25; larger is better
  std::string snippet;  // a part of the content, with the query's words in brackets
};

struct BadLine {
  int64_t line;
  std::string problem;
};

struct Ingested {
  int64_t lines = 0, added = 0, known = 0;
  std::vector<BadLine> bad;
};

/// Called repeatedly during an ingestion with the number of bad lines found so far. If the function returns false, the
/// ingestion throws Interrupted.
using IngestProgress = std::function<bool(size_t bad)>;

/// Returns the id that a record's line must have: the first 16 digits of the SHA-256 of the line without `"id":"ID",`,
/// where ID is `id`. If the line does not contain this text, for example because another program wrote blanks, the id
/// follows from the line that RecordFile would write with the fields in the same order.
std::string id_of_line(std::string_view line, const std::string& id);

class Store {
 public:
  enum class Mode { read, write };
  /// Mode::write creates the file and its folder if they are missing. ":memory:" gives a new store in memory. Throws
  /// BadInput for a file that cannot be read or is no knowledge base, for a missing file in Mode::read, and for a
  /// folder that cannot be created. Throws SqlError for other errors of SQLite.
  static Store open(const std::string& path, Mode mode);

  /// Adds the new records of all sound lines in one transaction, and reports the bad lines. Skips samples (samples/1).
  /// Throws SqlError, Interrupted, std::runtime_error for input that cannot be read to its end, and what `lines` throws
  /// (RecordInput). If ingest() throws, nothing is kept.
  Ingested ingest(std::istream& lines, const IngestProgress& progress = {});

  std::vector<Match> search(const std::string& query, const Filter& filter) const;
  /// In order of arrival.
  std::vector<Record> list(const Filter& filter) const;
  /// Returns the one record whose id begins with `id`; or, if `id` has a slash, the latest finding with the
  /// claim_key `id`. Throws BadInput if no record or several records match the digits, or if no finding has the
  /// key.
  Record find(const std::string& id) const;
  Json stats() const;
  const std::string& path() const { return path_; }

 private:
  Store(std::string path, Database database) : path_(std::move(path)), database_(std::move(database)) {}
  enum class Insertion { added, known, differs };
  /// Returns the records for which the condition holds, a text of SQL with the parameters `values`.
  template <typename... Values>
  std::vector<Record> select(std::string_view where, const Values&... values) const;
  std::optional<Record> first(std::string_view where, const std::string& value) const;
  std::optional<Record> run(const std::string& id) const;
  void set_times(const std::string& run_id, const std::string& ts);
  void add_headers(std::vector<Record>& records) const;
  Insertion insert(const Json& record, std::string_view line);

  std::string path_;
  Database database_;
};

}  // namespace attn::kb
