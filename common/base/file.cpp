#include "common/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>

namespace attn {

namespace fs = std::filesystem;

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::nullopt;
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

PendingFile::PendingFile(fs::path target) : target_(std::move(target)), path_(target_.string() + ".part") {
  // The previous holder of the lock may have renamed or removed the file while this PendingFile waited. If so, this
  // PendingFile opens the file anew and waits again.
  while (!held_) {
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) return;
    while (flock(descriptor_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      open_own();
      return;
    }
    struct stat mine{}, there{};
    held_ = fstat(descriptor_, &mine) == 0 && stat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
            mine.st_dev == there.st_dev;
    if (!held_) close(descriptor_);
  }
}

void PendingFile::open_own() {
  close(descriptor_);
  unlink(path_.c_str());
  path_ = fmt::format("{}.{:08x}.part", target_.string(), std::random_device()());
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  held_ = descriptor_ >= 0;
}

PendingFile::~PendingFile() {
  if (!held_) return;
  if (!renamed_) unlink(path_.c_str());
  close(descriptor_);
}

bool PendingFile::write(std::string_view text) {
  if (!held_ || ftruncate(descriptor_, 0) != 0) return false;
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor_, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  std::error_code error;
  fs::rename(path_, target_, error);
  if (error == std::errc::is_a_directory && fs::remove(target_, error)) fs::rename(path_, target_, error);
  renamed_ = !error;
  return renamed_;
}

}  // namespace attn
