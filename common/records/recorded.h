// The recorded runs of the source tree, findings/recorded/DEVICE/*.jsonl.gz.
#pragma once

#include <string>
#include <vector>

namespace attn {

/// Returns the files of the recorded runs of a source tree, sorted by name. Empty if the tree has none, for example
/// where only the programs are installed.
std::vector<std::string> recorded_files(const std::string& source_tree);

/// Returns the records of the recorded runs whose id begins with `digits`, as lines: first the headers (run/1) of the
/// records' runs, then the records. Runs gzip, which must be installed. Throws std::runtime_error if gzip fails.
std::vector<std::string> recorded_lines(const std::string& source_tree, const std::string& digits);

}  // namespace attn
