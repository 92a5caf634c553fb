#include "common/experiment/watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "common/base/json.h"
#include "common/base/standard_streams.h"
#include "common/base/stopwatch.h"
#include "common/base/temporary_folder.h"

namespace attn {
namespace {

constexpr size_t most_notes_bytes = size_t{4} << 20;  // unwritten pages of this mapping take no memory
constexpr double showing_s = 5;                       // the most seconds in which a worker may show what was measured
// A terminal and `timeout` may send one signal twice: to the process, and to its group. Signals that come within this
// time count as one signal.
constexpr double one_signal_s = 0.2;

/// Blocks SIGINT, SIGTERM and SIGCHLD, so that wait() receives them. give_back() unblocks them, for example in a
/// worker.
class KeptSignals {
 public:
  KeptSignals() {
    std::signal(SIGCHLD, SIG_DFL);  // a parent may have set SIGCHLD to be ignored; then nobody could wait for a worker
    sigemptyset(&kept_);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&kept_, signal);
    sigprocmask(SIG_BLOCK, &kept_, &old_);
  }
  ~KeptSignals() { give_back(); }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

  void give_back() const { sigprocmask(SIG_SETMASK, &old_, nullptr); }
  /// Returns the next signal, or 0 after `most_s` seconds.
  int wait(double most_s) const {
    const timespec most{static_cast<time_t>(most_s), static_cast<long>((most_s - static_cast<time_t>(most_s)) * 1e9)};
    const int signal = sigtimedwait(&kept_, nullptr, &most);
    return std::max(signal, 0);
  }

 private:
  sigset_t kept_{}, old_{};
};

double resident_bytes() {
  double pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

/// How a worker ended.
struct End {
  int status = 0;       // the status from waitpid()
  int signals = 0;      // how many SIGINT and SIGTERM came while the worker ran
  double silent_s = 0;  // not 0: the worker was ended because it made no progress for this time
};

/// Whether a process that writes to stdout or stderr now would wait for a reader. The worker has the streams of this
/// process, so this process can test them.
bool waits_for_reader() {
  std::array<pollfd, 2> streams{{{STDOUT_FILENO, POLLOUT, 0}, {STDERR_FILENO, POLLOUT, 0}}};
  for (pollfd& stream : streams) {
    if (poll(&stream, 1, 0) == 0) return true;
  }
  return false;
}

End wait_for(pid_t worker, const Activity& activity, bool interrupted, const KeptSignals& kept) {
  End end;
  Stopwatch since_signal;
  Silence silence;
  while (waitpid(worker, &end.status, WNOHANG) == 0) {
    const bool asked = end.signals > 0 || interrupted;
    const double left_s = (interrupted ? showing_s : ending_s) - since_signal.seconds();
    if (asked && (left_s <= 0 || end.signals > 1)) {
      kill(worker, SIGKILL);
      waitpid(worker, &end.status, 0);
      return end;
    }
    const double most_silent_s = activity.most_silent_s();
    if (!asked && silence.seconds(activity.progresses()) > most_silent_s) {
      if (waits_for_reader()) {
        silence = {};
        continue;
      }
      end.silent_s = most_silent_s;
      kill(worker, SIGKILL);
      waitpid(worker, &end.status, 0);
      return end;
    }
    const int signal = kept.wait(asked ? left_s : std::min(Silence::step_s, most_silent_s / 4));
    if (signal != SIGINT && signal != SIGTERM) continue;
    if (end.signals == 0) {
      since_signal = Stopwatch();
      kill(worker, SIGTERM);
    } else if (since_signal.seconds() < one_signal_s) {
      continue;
    }
    ++end.signals;
  }
  return end;
}

}  // namespace

std::string ended_by_signal(int signal) {
  return fmt::format("was ended by signal {} ({}){}", signal, strsignal(signal),
                     signal == SIGKILL ? ", which the system sends if memory is short" : "");
}

std::string without_progress(double seconds) {
  return fmt::format("made no progress for {:.3g} s, and was ended", seconds);
}

double Silence::seconds(int64_t progresses) {
  seconds_ += std::min(since_call_.lap(), 2 * step_s);
  if (std::exchange(last_, progresses) != progresses) seconds_ = 0;
  return seconds_;
}

struct Activity::Shared {
  std::atomic<int64_t> progresses = 0;
  std::atomic<double> most_silent_s = std::numeric_limits<double>::infinity();
  std::atomic<int> at = -1;
  std::atomic<bool> another = false;
  std::array<char, 16> status = {};
  std::array<char, 1024> reason = {};
  std::array<char, size_t{1} << 14> last_case = {};
  size_t bytes = 0;
  std::array<uint8_t, most_notes_bytes> notes;
};

Activity::Activity(const std::string& file)
    : shared_([&] {
        // A new file and anonymous memory have only zeros, so Shared's constructor need not write `notes`.
        const int descriptor = file.empty() ? -1 : open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        const bool has_room = file.empty() || (descriptor >= 0 && ftruncate(descriptor, sizeof(Shared)) == 0);
        const int flags = MAP_SHARED | MAP_NORESERVE | (file.empty() ? MAP_ANONYMOUS : 0);
        void* const memory =
            has_room ? mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, flags, descriptor, 0) : MAP_FAILED;
        if (descriptor >= 0) close(descriptor);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        return new (memory) Shared;
      }()) {}

Activity::~Activity() { munmap(shared_, sizeof(Shared)); }

void Activity::end_if_silent_for(double seconds) { shared_->most_silent_s = seconds; }
double Activity::most_silent_s() const { return shared_->most_silent_s; }
void Activity::progress() { shared_->progresses.fetch_add(1, std::memory_order_relaxed); }
int64_t Activity::progresses() const { return shared_->progresses.load(std::memory_order_relaxed); }

void Activity::note(const Json& notes) {
  progress();
  leave_case();
  shared_->at = -1;
  // CBOR keeps names of files that are no UTF-8; JSON would not.
  const std::vector<uint8_t> bytes = Json::to_cbor(notes);
  shared_->bytes = bytes.size() <= most_notes_bytes ? bytes.size() : 0;
  std::memcpy(shared_->notes.data(), bytes.data(), shared_->bytes);
}

Json Activity::notes() const {
  const Json notes =
      Json::from_cbor(shared_->notes.data(), shared_->notes.data() + shared_->bytes, /*strict=*/true, /*throws=*/false);
  return notes.is_object() ? notes : Json::object();
}

void Activity::leave_case() {
  if (at() < 0) return;
  const Json cases = notes().value("cases", Json::array());
  const auto number = static_cast<size_t>(at());
  if (number >= cases.size()) return;
  const std::string text = cases[number].dump();
  if (text.size() < shared_->last_case.size())
    shared_->last_case[text.copy(shared_->last_case.data(), text.npos)] = '\0';
}

Json Activity::last_case() const { return parse_json(shared_->last_case.data(), false); }

void Activity::at(int number) {
  progress();
  if (number < 0) leave_case();
  shared_->at.store(number, std::memory_order_relaxed);
}
int Activity::at() const { return shared_->at; }

void Activity::end_case(std::string_view status, std::string_view reason) {
  shared_->status[status.copy(shared_->status.data(), shared_->status.size() - 1)] = '\0';
  shared_->reason[reason.copy(shared_->reason.data(), shared_->reason.size() - 1)] = '\0';
  _exit(1);
}

std::pair<std::string, std::string> Activity::end_of_case() const {
  return {shared_->status.data(), shared_->reason.data()};
}

void Activity::go_on_in_another() {
  shared_->another = true;
  std::fflush(nullptr);
  _exit(1);  // without destructors, which would wait for the kernels that still run on the device
}

bool Activity::asks_for_another() const { return shared_->another; }

CompilationLimit::CompilationLimit(Activity& activity, double seconds, double bytes)
    : thread_([this, &activity, seconds, bytes] {
        constexpr auto step = std::chrono::milliseconds(20);
        const Stopwatch stopwatch;
        const double before = resident_bytes();
        std::unique_lock lock(mutex_);
        while (!ended_.wait_for(lock, step, [this] { return done_; })) {
          if (stopwatch.seconds() > seconds) {
            activity.end_case("failed", fmt::format("the compiler takes more than {:.0f} s", seconds));
          }
          if (resident_bytes() - before > bytes) {
            activity.end_case("failed", fmt::format("the compiler takes more than {:.0f} GB of memory", 1e-9 * bytes));
          }
        }
      }) {}

CompilationLimit::~CompilationLimit() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

int watch(const std::string& name, std::vector<std::string> arguments,
          const std::function<int(const std::vector<std::string>& arguments, const Worker& worker)>& work) {
  constexpr int interrupted_status = 130;
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  const KeptSignals kept;
  // All temporary files of the workers, their parts and their compilers lie in this folder. The run's end removes the
  // folder.
  std::optional<TemporaryFolder> temporary;
  try {
    temporary.emplace();
  } catch (const std::filesystem::filesystem_error&) {
    // Code that needs a temporary folder reports the error.
  }
  const auto complain = [&](const std::string& message, int status) {
    kept.give_back();  // so that a signal ends this process while it waits for a reader
    to_stderr(fmt::format("{}: {}\n", name, message));
    return status;
  };
  Before before;
  for (;;) {
    Activity activity;
    std::fflush(nullptr);
    const pid_t watcher = getpid(), worker = fork();
    if (worker < 0) return complain(fmt::format("no process can be started: {}", strerror(errno)), 1);
    if (worker == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != watcher) _exit(1);
      kept.give_back();
      if (temporary) setenv("TMPDIR", temporary->path().c_str(), 1);
      std::exit(work(arguments, {activity, before}));
    }
    const End end = wait_for(worker, activity, before.interrupted, kept);
    const bool asked = end.signals > 0 || before.interrupted;
    wait_for_readers(!asked);
    const bool lost_device = activity.asks_for_another();
    auto [status, reason] = activity.end_of_case();
    if (WIFEXITED(end.status) && !lost_device && status.empty()) return WEXITSTATUS(end.status);
    if (status.empty()) {
      status = "failed";
      reason = "the process of the run " +
               (end.silent_s > 0 ? without_progress(end.silent_s) : ended_by_signal(WTERMSIG(end.status)));
    }

    const Json notes = activity.notes();
    const Json resume = notes.value("resume", Json::array());
    if (before.interrupted || end.signals > 1 || (asked && resume.empty())) {
      return complain("interrupted", interrupted_status);
    }
    const int number = activity.at();
    const Json cases = notes.value("cases", Json::array());
    const bool in_case = number >= 0 && number < static_cast<int>(cases.size());
    // A worker that ends while it compiles several kernels at once is followed by a worker that compiles one at a time.
    const bool compiled_ahead = !cases.empty() && before.compile_ahead;
    const Json lost = in_case                            ? cases[static_cast<size_t>(number)]
                      : notes.value("users_code", false) ? activity.last_case()
                                                         : Json();
    const bool has_lost = in_case || (!compiled_ahead && !lost.is_null() && !lost.is_discarded());
    if (!asked && !lost_device && (resume.empty() || (!has_lost && !compiled_ahead))) {
      const std::string doing = in_case ? "in the case " + cases[static_cast<size_t>(number)].dump()
                                        : notes.value("doing", std::string("in no case"));
      return complain(fmt::format("{}, {}", reason, doing), notes.value("status", 1));
    }
    if (before.run_id.empty()) before.resumed = notes.value("resumed", false);
    before.run_id = notes.value("run", std::string());
    before.interrupted = asked;
    before.lost = nullptr;
    if (!asked && !lost_device) {
      if (has_lost) {
        before.lost = lost;
        before.status = status;
        before.reason = reason;
      } else {
        before.compile_ahead = false;
      }
    }
    arguments = resume.get<std::vector<std::string>>();
  }
}

}  // namespace attn
