// Whole files. A file is read in one piece, and replaced in one step: a reader sees either the old file or the new
// file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace attn {

/// Returns the bytes of a file, or nullopt if the file cannot be read.
std::optional<std::string> read_file(const std::filesystem::path& path);

/// A file that is being written. Until it is complete, its name is TARGET.part. The file is locked: another process or
/// thread that wants to write the same target waits in the constructor. If a process dies, the system releases its
/// lock, and the next process takes over the file. On a file system without locks nobody waits: each PendingFile is a
/// file of its own, TARGET.NUMBER.part.
class PendingFile {
 public:
  explicit PendingFile(std::filesystem::path target);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  /// Writes the text and renames the file to its target. Returns false if this fails, for example because the disk is
  /// full.
  [[nodiscard]] bool write(std::string_view text);

 private:
  void open_own();

  const std::filesystem::path target_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  bool held_ = false, renamed_ = false;
};

}  // namespace attn
