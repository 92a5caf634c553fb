#include "common/base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <fstream>
#include <mutex>
#include <string>
#include <utility>

namespace attn {
namespace {

/// Opens the file for each message, so that a log without messages makes no file.
class LateFile : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LateFile(std::string path) : path_(std::move(path)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::ofstream(path_, std::ios::app).write(line.data(), static_cast<std::streamsize>(line.size()));
  }
  void flush_() override {}

  const std::string path_;
};

struct Named {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> logger;
};
Named& named() {
  static Named named;
  return named;
}

}  // namespace

std::shared_ptr<spdlog::logger> logger() {
  const std::lock_guard lock(named().mutex);
  return named().logger ? named().logger : spdlog::default_logger();
}

void set_logger(std::shared_ptr<spdlog::logger> other) {
  const std::lock_guard lock(named().mutex);
  named().logger = std::move(other);
}

std::shared_ptr<spdlog::logger> file_logger(const std::string& path) {
  return std::make_shared<spdlog::logger>("attn", std::make_shared<LateFile>(path));
}

}  // namespace attn
