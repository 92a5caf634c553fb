// Archives of compiled kernels.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "common/source/binary.h"

namespace attn {

/// The binaries of many kernels in one file, which an application can ship and load in one step. Metal calls such a
/// file a binary archive. save() writes to a temporary name and renames the file. Each entry has a checksum.
class PipelineArchive {
 public:
  /// Throws BadInput if the file is missing or is no archive. Leaves out damaged entries, counts them and logs a
  /// warning. If an entry's length is damaged, the rest of the file counts as one damaged entry.
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
