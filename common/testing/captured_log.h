// Captures the log, for tests of warnings.
#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>

namespace attn::test {

/// Collects the lines that are logged during its lifetime.
class CapturedLog {
 public:
  CapturedLog() : old_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines_, true)));
  }
  ~CapturedLog() { spdlog::set_default_logger(old_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  int lines() const {
    const std::string text = lines_.str();
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }
  std::string text() const { return lines_.str(); }

 private:
  std::ostringstream lines_;
  std::shared_ptr<spdlog::logger> old_;
};

}  // namespace attn::test
