// Whole files: read in one piece, and replaced so that a reader sees the old one or the new one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace attn {

/// The bytes of a file; nothing where it cannot be read.
std::optional<std::string> read_file(const std::filesystem::path& path);

/// A file while it is made, beside its place. It is locked: whoever else wants the same file waits in the constructor.
/// A process that dies leaves it unlocked, and the next one takes over.
class PendingFile {
 public:
  explicit PendingFile(std::filesystem::path target);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  /// Writes the text and renames the file to its place. False if the disk is full or the folder cannot be written.
  bool write(std::string_view text);

 private:
  const std::filesystem::path target_, path_;
  int descriptor_ = -1;
  bool held_ = false, renamed_ = false;
};

}  // namespace attn
