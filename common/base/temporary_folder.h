// A folder for files that nobody is to find afterwards.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace attn {

/// A new folder where the system keeps temporary files, removed with all that is in it at the end of the scope.
class TemporaryFolder {
 public:
  /// Throws std::filesystem::filesystem_error where none can be made.
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
