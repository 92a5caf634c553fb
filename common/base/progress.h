// The progress that a long task shows while it runs.
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

  /// Adds `steps` steps that are still to be done.
  void add(size_t steps) { total_ += steps; }
  /// Names the step that runs now.
  void begin(const std::string& what);
  /// Ends a step; `result` is its line if there is no bar.
  void finish(const std::string& result);
  /// Shows a line, even if progress is not shown.
  void note(const std::string& text);
  /// Removes the bar.
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
