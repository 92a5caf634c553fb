// Pipeline archives.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "common/source/binary.h"

namespace attn {

/// Many binaries in one file. With it an application ships all its variants or loads them at once. Metal calls this a
/// binary archive. The file is written to a temporary name and renamed; each entry carries a checksum.
class PipelineArchive {
 public:
  /// Reads an archive. A missing or foreign file throws BadInput; a damaged entry is left out, counted and reported.
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
