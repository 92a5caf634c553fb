#include "common/base/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>

namespace attn {
namespace {

constexpr int step_ms = 20, patience_ms = 200;

std::atomic<bool> waits = true;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");
std::atomic<bool> given_up[3];

/// Returns whether the whole text was written.
bool write_all(int descriptor, std::string_view text) {
  for (int waited_ms = 0; !text.empty();) {
    if (!waits && (given_up[descriptor] || waited_ms >= patience_ms)) {
      given_up[descriptor] = true;
      return false;
    }
    pollfd stream = {.fd = descriptor, .events = POLLOUT, .revents = 0};
    const int ready = poll(&stream, 1, step_ms);
    if (ready == 0) waited_ms += waits ? 0 : step_ms;
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    // A pipe that poll() finds ready has room for PIPE_BUF bytes, so this call does not block.
    const ssize_t written = write(descriptor, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

std::atomic<bool> lost = false;

}  // namespace

void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // open() returns the lowest free number, which is the number of this stream.
    if (stream == STDIN_FILENO || open("/dev/full", O_WRONLY) < 0) open("/dev/null", O_RDONLY);
  }
}

void to_stderr(std::string_view text) { write_all(STDERR_FILENO, text); }

void to_stdout(std::string_view text) {
  std::fflush(stdout);
  if (!write_all(STDOUT_FILENO, text)) lost = true;
}

bool stdout_lost() { return lost || std::ferror(stdout) != 0; }

void wait_for_readers(bool wait) noexcept { waits = wait; }

}  // namespace attn
