// Seconds since a moment, by a monotonic clock.
#pragma once

#include <chrono>
#include <utility>

namespace attn {

class Stopwatch {
 public:
  /// Seconds since construction or since the last lap().
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  /// Returns seconds(), and starts again.
  double lap() {
    const Clock::time_point now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(start_, now)).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace attn
