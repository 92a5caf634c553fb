// The text of a file of records, plain or gzip.
#pragma once

#include <istream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace attn::kb {

/// Thrown to end an ingestion after SIGINT or SIGTERM.
struct Interrupted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A file of records, or stdin for "-", as a stream of plain text. Gzip is recognized by its first two bytes and
/// unpacked. The constructor throws BadInput for a folder and for a file that cannot be opened. Reading throws BadInput
/// for damaged gzip and for a line that is longer than any record, and std::runtime_error for a file that cannot be
/// read to its end. Both throw Interrupted if a signal that the program handles interrupts them.
class RecordInput : public std::istream {
 public:
  explicit RecordInput(const std::string& name);
  ~RecordInput() override;

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
};

/// Returns the files of records (*.jsonl, *.jsonl.gz; no samples) in a folder and its subfolders, sorted by name; or
/// `path` itself if it is no folder. Throws BadInput for a folder without such files, and for one that cannot be read.
std::vector<std::string> record_files(const std::string& path);

/// Throws BadInput if `out`, a file that will be replaced, is a folder or one of `files`, which will be read.
void require_output(const std::string& out, const std::vector<std::string>& files);

}  // namespace attn::kb
