// Archives of compiled kernels.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "common/source/binary.h"

namespace attn {

/// Many binaries in one file. An application can ship the binaries of all its kernels in one archive, and load them in
/// one step. Metal calls such a file a binary archive. The file is written to a temporary name and renamed; each entry
/// has a checksum.
class PipelineArchive {
 public:
  /// Reads an archive. Throws BadInput if the file is missing or is no archive. Leaves out damaged entries, counts them
  /// and logs a warning. If an entry's length is damaged, the rest of the file counts as one damaged entry.
  static PipelineArchive load(const std::string& path);
  void add(const std::string& cache_key, const Binary& binary) { entries_[cache_key] = binary; }
  const Binary* find(const std::string& cache_key) const;
  void save(const std::string& path) const;
  size_t size() const { return entries_.size(); }
  size_t damaged() const { return damaged_; }

 private:
  std::map<std::string, Binary> entries_;
  size_t damaged_ = 0;
};

}  // namespace attn
