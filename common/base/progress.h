// The progress that a long task shows while it runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace attn {

/// Shows a bar with the time left if stderr is a terminal, else plain lines; with `quiet`, shows neither. Progress
/// writes to stderr, so that stdout holds results only.
class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Adds `steps` steps that are still to be done.
  void add(size_t steps) { total_ += steps; }
  /// Names the step that begins now.
  void begin(const std::string& what);
  /// Ends a step. If Progress shows plain lines, prints `result` as the step's line.
  void finish(const std::string& result);
  /// Shows a line, even with `quiet`.
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

/// Returns a text such as "41 s", "3 min 10 s" or "2 h 05 min".
std::string format_duration(double seconds);

}  // namespace attn
