// Files of records: one JSON object a line, appended whole. docs/records.md lists every field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace attn {

using Json = nlohmann::ordered_json;

/// nlohmann would write NaN and infinity as null without a word. Throws std::runtime_error with the path of the first.
void require_finite(const Json& json, const std::string& path);

/// id = first 16 hex digits of the SHA-256 of the record without its id.
std::string record_id(const Json& record);

/// Appends one line with a single write and a flush. Throws std::runtime_error (disk full, unwritable) with the path;
/// a partly written line is cut off again, so that the file stays whole.
class RecordFile {
 public:
  explicit RecordFile(std::string path);  // throws BadInput where the file cannot be opened for appending
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;
  void append(const Json& record);

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// All whole lines of a record file; a torn or unreadable line is skipped and described in `problems` ("line 7: ...").
/// A missing file has no records. Before appending to a file with a torn last line, RecordFile ends that line.
std::vector<Json> read_records(const std::string& path, std::vector<std::string>& problems);

}  // namespace attn
