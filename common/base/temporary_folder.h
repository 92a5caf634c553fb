// A folder for temporary files.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace attn {

/// A new folder in the system's folder for temporary files. The destructor removes the folder with all its files.
class TemporaryFolder {
 public:
  /// Throws std::filesystem::filesystem_error if no folder can be made.
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path() / "attention-proto-XXXXXX";
    if (!mkdtemp(name.data()))
      throw std::filesystem::filesystem_error("no temporary folder", name, {errno, std::generic_category()});
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace attn
