#include "common/base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "common/base/standard_streams.h"

namespace attn {
namespace {

size_t terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(bool quiet) : quiet_(quiet), terminal_(!quiet && isatty(STDERR_FILENO)) {}

void Progress::begin(const std::string& what) {
  what_ = what;
  draw();
}

void Progress::finish(const std::string& result) {
  done_ = std::min(done_ + 1, total_);
  if (terminal_) return draw();
  if (!quiet_) to_stderr(fmt::format("[{}/{}] {}\n", done_, total_, result));
}

void Progress::note(const std::string& text) {
  clear();
  to_stderr(text + "\n");
  draw();
}

void Progress::clear() {
  if (drawn_) to_stderr("\r\x1b[K");
  drawn_ = false;
}

void Progress::draw() {
  if (!terminal_ || total_ == 0) return;
  constexpr size_t bar_width = 24;
  const size_t filled = bar_width * done_ / total_;
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const std::string left = done_ > 0 ? format_duration(elapsed * (total_ - done_) / done_) + " left" : "";
  const std::string line = fmt::format("[{}{}] {}/{} {}  {}", std::string(filled, '#'),
                                       std::string(bar_width - filled, '.'), done_, total_, left, what_);
  to_stderr("\r\x1b[K" + line.substr(0, terminal_width() - 1));
  drawn_ = true;
}

std::string format_duration(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace attn
