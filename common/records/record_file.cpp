#include "common/records/record_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/sha256.h"

namespace attn {
namespace {

/// The line of a record, without its end. Bytes that are not UTF-8, for example of a compiler's message, are replaced.
std::string line_of(const Json& record) { return record.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// An exclusive lock on an open file. Some file systems, such as NFS without a lock daemon, have no locks.
class FileLock {
 public:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {
    while (flock(descriptor_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      error_ = errno;
      return;
    }
  }
  ~FileLock() { flock(descriptor_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  int error() const { return error_; }  // 0: the file is locked

 private:
  int descriptor_, error_ = 0;
};

}  // namespace

void require_finite(const Json& json, const std::string& path) {
  if (json.is_number_float() && !std::isfinite(json.get<double>())) {
    throw std::runtime_error(fmt::format("{} is not a finite number and cannot be recorded", path));
  }
  if (json.is_structured()) {
    for (const auto& [key, value] : json.items()) require_finite(value, path + "." + key);
  }
}

std::string record_id(const Json& record) {
  Json content = record;
  content.erase("id");
  return sha256(line_of(content)).substr(0, 16);
}

RecordFile::RecordFile(std::string path) : path_(std::move(path)) {
  // A pipe is opened only for writing: if this process could read the pipe too, append() would not fail after the real
  // reader's end. Without O_NONBLOCK, open() would wait for a reader.
  std::error_code none;
  const bool pipe = std::filesystem::is_fifo(path_, none);
  const int mode = pipe ? O_WRONLY | O_NONBLOCK : O_RDWR | O_CREAT;
  descriptor_ = open(path_.c_str(), mode | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    throw BadInput(fmt::format("cannot append to '{}': {}; name a file that can be written", path_,
                               pipe && errno == ENXIO ? "nobody reads this pipe" : strerror(errno)));
  }
  if (pipe) fcntl(descriptor_, F_SETFL, O_APPEND);  // without O_NONBLOCK append() waits while the pipe is full
}

RecordFile::~RecordFile() { close(descriptor_); }

void RecordFile::append(const Json& record) {
  std::string line = line_of(record) + '\n';
  const FileLock lock(descriptor_);
  struct stat status{};
  fstat(descriptor_, &status);
  const bool regular = S_ISREG(status.st_mode);
  if (regular && lock.error() != 0 && !warned_) {
    warned_ = true;
    logger()->warn("'{}' cannot be locked ({}); no other program may write to it at the same time", path_,
                   strerror(lock.error()));
  }
  char last = '\n';
  if (regular && status.st_size > 0 && pread(descriptor_, &last, 1, status.st_size - 1) == 1 && last != '\n') {
    line.insert(line.begin(), '\n');  // ends a last line that a crash left torn
  }

  int error = 0;
  for (std::string_view rest = line; !rest.empty() && error == 0;) {
    const ssize_t written = write(descriptor_, rest.data(), rest.size());
    if (written >= 0) {
      rest.remove_prefix(static_cast<size_t>(written));  // after a short write, the next write() reports the error
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0) return;
  // In a file without lock, another process may already have written after the torn line, which therefore stays.
  const bool whole = !regular || (lock.error() == 0 && ftruncate(descriptor_, status.st_size) == 0);
  throw std::runtime_error(
      fmt::format("cannot append to '{}': {}{}", path_, strerror(error), whole ? "" : "; its last line is torn"));
}

bool is_record_file(std::string_view name) {
  return (name.ends_with(".jsonl") && !name.ends_with(".samples.jsonl")) || name.ends_with(".jsonl.gz");
}

std::vector<Json> read_records(const std::string& path, std::vector<std::string>& problems) {
  std::error_code none;
  const std::filesystem::file_type type = std::filesystem::status(path, none).type();
  const bool folder = type == std::filesystem::file_type::directory;
  if (type != std::filesystem::file_type::regular && !folder) return {};
  std::ifstream file(path);
  if (!file || folder) throw BadInput(fmt::format("cannot read '{}'", path));
  std::vector<Json> records;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    Json record = parse_json(line, false);
    const auto is_text = [&](const char* field) { return !record.contains(field) || record[field].is_string(); };
    if (record.is_object() && is_text("schema") && is_text("id")) {
      records.push_back(std::move(record));
    } else if (record.is_object()) {
      problems.push_back(fmt::format("line {}: schema or id is no text, skipped", number));
    } else {
      problems.push_back(
          fmt::format("line {}: {}, skipped", number,
                      file.eof() ? "torn (the run ended before it had written the whole line)" : "no JSON object"));
    }
  }
  return records;
}

}  // namespace attn
