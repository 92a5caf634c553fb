// Files of records: one JSON object per line. docs/records.md lists every field.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/json.h"

namespace attn {

/// Throws std::runtime_error for NaN and infinity, which nlohmann would write as null. The message names the number:
/// `path`, then its keys in `json`.
void require_finite(const Json& json, const std::string& path);

/// Returns the record's id: the first 16 hex digits of the SHA-256 of the record without its id.
std::string record_id(const Json& record);

/// append() adds one line. If it cannot write (for example to a full disk), it cuts off a partly written line and
/// throws std::runtime_error with the path. Several programs may append at the same time, because each append() locks
/// the file. If the file system has no locks, the first append() warns that no other program may write, and a partly
/// written line stays.
class RecordFile {
 public:
  /// Throws BadInput where the file cannot be opened for appending, and for a pipe that nobody reads.
  explicit RecordFile(std::string path);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  void append(const Json& record);

 private:
  std::string path_;
  int descriptor_ = -1;
  bool warned_ = false;  // that the file cannot be locked
};

/// Whether a file of this name has records: it ends with .jsonl or .jsonl.gz, and has no samples (.samples.jsonl).
bool is_record_file(std::string_view name);

/// Returns the records of a file. A torn or unreadable line is skipped and described in `problems` ("line 7: ..."). A
/// missing file, a pipe, and a device such as /dev/full have no records. Throws BadInput for a folder and for a file
/// that cannot be read.
std::vector<Json> read_records(const std::string& path, std::vector<std::string>& problems);

}  // namespace attn
