// What a long task shows while it runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace attn {

/// A bar with the time left on a terminal, plain lines otherwise; on stderr, so that stdout holds results only.
class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `steps` more are to be done.
  void add(size_t steps) { total_ += steps; }
  /// Names what runs now.
  void begin(const std::string& what);
  /// A step is done; `result` is its line where there is no bar.
  void finish(const std::string& result);
  /// A line that is shown also when progress is not.
  void note(const std::string& text);
  /// Takes the bar away.
  void clear();

 private:
  void draw();

  const bool quiet_, terminal_;
  bool drawn_ = false;
  size_t done_ = 0, total_ = 0;
  std::string what_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// "41 s", "3 min 10 s", "2 h 05 min".
std::string format_duration(double seconds);

}  // namespace attn
