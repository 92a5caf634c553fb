// The text of a file of records, plain or gzip.
#pragma once

#include <istream>
#include <memory>
#include <string>
#include <vector>

namespace attn::kb {

/// A file of records, or stdin for "-", as a stream of plain text. The stream recognizes gzip by the first two bytes,
/// and unpacks it.
/// The constructor throws BadInput for a file that cannot be opened. Reading from the stream throws BadInput for gzip
/// that is damaged or ends early, and std::runtime_error for a file that cannot be read to its end.
class RecordInput : public std::istream {
 public:
  explicit RecordInput(const std::string& name);
  ~RecordInput() override;

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
};

/// Returns the files (*.jsonl.gz) of the recorded runs in a source tree, sorted by name.
std::vector<std::string> recorded_files(const std::string& source_tree);

}  // namespace attn::kb
