#include "findings/kb/record_input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <streambuf>
#include <string_view>

#include "common/base/error.h"
#include "common/records/record_file.h"

namespace attn::kb {
namespace {

constexpr size_t most_line_bytes = size_t{64} << 20;  // no record is longer

}  // namespace

class RecordInput::Buffer : public std::streambuf {
 public:
  explicit Buffer(const std::string& name) : name_(name == "-" ? "stdin" : name) {
    if (name == "-") return;
    std::error_code error;
    if (std::filesystem::is_directory(name, error)) throw BadInput(fmt::format("{}: is a folder; name a file", name));
    file_ = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0 && errno == EINTR) throw Interrupted("interrupted");
    if (file_ < 0) throw BadInput(fmt::format("{}: cannot be read: {}", name, std::strerror(errno)));
  }
  ~Buffer() override {
    if (is_gzip_) inflateEnd(&inflation_);
    if (file_ != STDIN_FILENO) ::close(file_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

 protected:
  int_type underflow() override {
    if (!begun_) begin();
    if (is_gzip_) {
      setg(text_.data(), text_.data(), text_.data() + unpack());
    } else {
      if (taken_ == filled_) fill();
      setg(bytes_.data() + taken_, bytes_.data() + taken_, bytes_.data() + filled_);
      taken_ = filled_;
    }
    limit_line();
    return gptr() == egptr() ? traits_type::eof() : traits_type::to_int_type(*gptr());
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw BadInput(fmt::format("{}: is damaged gzip: {}", name_, why));
  }

  /// Throws BadInput if the unfinished line is too long. Without this limit a text without newlines would fill the
  /// memory.
  void limit_line() {
    const std::string_view part(gptr(), static_cast<size_t>(egptr() - gptr()));
    const size_t end = part.rfind('\n');
    line_bytes_ = end == part.npos ? line_bytes_ + part.size() : part.size() - end - 1;
    if (line_bytes_ <= most_line_bytes) return;
    throw BadInput(fmt::format("{}: has a line of more than {} MiB; a file of records has a JSON object in each line",
                               name_, most_line_bytes >> 20));
  }

  /// Reads the first two bytes of the file, which say whether the file is gzip.
  void begin() {
    begun_ = true;
    while (filled_ < 2 && read_more()) {
    }
    const bool gzip = filled_ >= 2 && bytes_[0] == '\x1f' && bytes_[1] == '\x8b';
    if (!gzip && name_.ends_with(".gz")) refuse("it does not begin as gzip does");
    constexpr int largest_window = 15, only_gzip = 16;
    if (gzip && inflateInit2(&inflation_, largest_window + only_gzip) != Z_OK) throw std::bad_alloc();
    is_gzip_ = gzip;
  }

  /// Returns false at the end of the file.
  bool read_more() {
    const ssize_t count = ::read(file_, bytes_.data() + filled_, bytes_.size() - filled_);
    if (count < 0 && errno == EINTR) throw Interrupted("interrupted");
    if (count < 0) {
      throw std::runtime_error(
          fmt::format("{}: cannot be read to its end: {}; none of its records is used", name_, std::strerror(errno)));
    }
    filled_ += static_cast<size_t>(count);
    return count > 0;
  }

  /// Replaces bytes_, which must all be taken. Returns false at the end of the file.
  bool fill() {
    taken_ = filled_ = 0;
    return read_more();
  }

  /// Returns the size of the next part of the text; 0 at the end of the file.
  size_t unpack() {
    inflation_.next_out = reinterpret_cast<Bytef*>(text_.data());
    inflation_.avail_out = static_cast<uInt>(text_.size());
    while (inflation_.avail_out == text_.size()) {
      if (taken_ == filled_ && !fill()) {
        if (!member_ended_) refuse("it ends early");
        return 0;
      }
      if (member_ended_) inflateReset(&inflation_);  // concatenated gzip files are a gzip file with several members
      inflation_.next_in = reinterpret_cast<Bytef*>(bytes_.data() + taken_);
      inflation_.avail_in = static_cast<uInt>(filled_ - taken_);
      const int status = inflate(&inflation_, Z_NO_FLUSH);
      taken_ = filled_ - inflation_.avail_in;
      member_ended_ = status == Z_STREAM_END;
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
        refuse(inflation_.msg ? inflation_.msg : "it cannot be unpacked");
      }
    }
    return text_.size() - inflation_.avail_out;
  }

  std::string name_;
  int file_ = STDIN_FILENO;
  bool begun_ = false, is_gzip_ = false, member_ended_ = false;
  std::array<char, 1 << 16> bytes_ = {}, text_ = {};  // the file's bytes; the unpacked text
  size_t taken_ = 0, filled_ = 0;                     // numbers of bytes in bytes_
  size_t line_bytes_ = 0;                             // read bytes of the unfinished line
  z_stream inflation_ = {};
};

// Exceptions of the buffer leave std::getline only if the stream throws for badbit.
RecordInput::RecordInput(const std::string& name) : std::istream(nullptr), buffer_(std::make_unique<Buffer>(name)) {
  rdbuf(buffer_.get());
  exceptions(std::ios::badbit);
}

RecordInput::~RecordInput() = default;

std::vector<std::string> record_files(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  for (std::filesystem::recursive_directory_iterator at(path, error), end; at != end; at.increment(error)) {
    if (is_record_file(at->path().string()) && at->is_regular_file()) files.push_back(at->path().string());
  }
  if (error) throw BadInput(fmt::format("{}: cannot be read: {}", path, error.message()));
  if (files.empty()) throw BadInput(fmt::format("{}: has no record files (.jsonl or .jsonl.gz)", path));
  std::ranges::sort(files);
  return files;
}

void require_output(const std::string& out, const std::vector<std::string>& files) {
  std::error_code none;
  if (std::filesystem::is_directory(out, none)) throw BadInput(fmt::format("--out {}: is a folder; name a file", out));
  for (const std::string& file : files) {
    if (!std::filesystem::equivalent(out, file, none)) continue;
    throw BadInput(fmt::format("--out {}: is one of the files to read; name another file", out));
  }
}

}  // namespace attn::kb
