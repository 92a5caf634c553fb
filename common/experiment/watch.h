// Runs an experiment in a separate process, the worker, and watches the worker. A worker may be ended at any moment:
// the records that it wrote are whole, and the next worker goes on from them. So if a case ends its process, only this
// case is lost. A process may end because a user's function overwrites the stack, because a compiler overflows its
// stack, or for lack of memory. A signal can end a worker even if the worker's kernel never ends. A worker that hangs
// is ended too. It may hang because a user's function jumped out of malloc() while malloc() held a lock, or because
// another program stopped the worker.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/base/stopwatch.h"

namespace attn {

/// What a worker does, in memory that it shares with the process that watches it.
class Activity {
 public:
  /// With `file`, all processes that name this file share the memory. Without `file`, this process and the processes
  /// that it forks share the memory. Throws std::bad_alloc.
  explicit Activity(const std::string& file = "");
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  /// From now on the watching process ends the worker after `seconds` without progress. Calls of note(), at(number) and
  /// progress() are progress. Without this call the watching process does not end a silent worker.
  void end_if_silent_for(double seconds);
  double most_silent_s() const;
  void progress();
  /// The number of calls that were progress.
  int64_t progresses() const;

  /// Replaces the notes. After this call the worker is at none of the cases in the notes.
  void note(const Json& notes);
  /// The last notes; an empty object if there are none.
  Json notes() const;
  /// The case that the worker is at, as an index into the notes' list of cases; -1 if the worker is at no case.
  void at(int number);
  int at() const;
  /// The last case that the worker left, by note() or at(-1). If it left none, is_discarded() of the result is true.
  Json last_case() const;
  /// Ends the worker at once: its data may be corrupt, or a compiler in its process takes too long or too much memory.
  /// The next worker records the case with this status and reason.
  [[noreturn]] void end_case(std::string_view status, std::string_view reason);
  /// The status and the reason that the worker gave to end_case(); empty if the worker did not call end_case().
  std::pair<std::string, std::string> end_of_case() const;
  /// Ends this worker, and asks for another worker that goes on. A worker that can no longer use its device calls this.
  [[noreturn]] void go_on_in_another();
  bool asks_for_another() const;

 private:
  struct Shared;
  void leave_case();
  Shared* const shared_;
};

/// What a worker has to know about the workers of the same run before it.
struct Before {
  std::string run_id;          // empty for the first worker
  bool resumed = false;        // whether the user gave --resume
  Json lost;                   // the case that ended the last worker, or null
  std::string status, reason;  // of `lost`: "failed", "the process of the run was ended by signal 9 (Killed)"
  bool compile_ahead = true;   // false after a worker ended while it compiled several kernels at once
  bool interrupted = false;    // true: the worker only shows what was measured
};

/// What watch() gives to a worker.
struct Worker {
  Activity& activity;
  const Before& before;
};

/// While an object of this class exists, it ends the worker if a compilation takes too long or too much memory. Nothing
/// else can end a compiler that runs in this process. The case that the worker is at is then recorded as failed.
class CompilationLimit {
 public:
  static constexpr double most_s = 60, most_bytes = 4e9;
  explicit CompilationLimit(Activity& activity, double seconds = most_s, double bytes = most_bytes);
  ~CompilationLimit();
  CompilationLimit(const CompilationLimit&) = delete;
  CompilationLimit& operator=(const CompilationLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

/// After SIGINT or SIGTERM, a worker may run for at most this many seconds. Then the process that watches the worker
/// ends it.
inline constexpr double ending_s = 1;

/// If a signal ended a process, the status of the process is this number plus the signal's number, as in shells.
inline constexpr int signalled = 128;

/// The time in which a process makes no progress.
class Silence {
 public:
  static constexpr double step_s = 1;  // the most seconds between two calls of seconds()
  /// `progresses` grows with each progress. Returns the seconds since the last progress, as this process saw them: the
  /// time between two calls counts as at most 2 * step_s, because this process may have been stopped in between.
  double seconds(int64_t progresses);

 private:
  int64_t last_ = -1;
  double seconds_ = 0;
  Stopwatch since_call_;
};

/// "was ended by signal 11 (Segmentation fault)".
std::string ended_by_signal(int signal);

/// "made no progress for 120 s, and was ended".
std::string without_progress(double seconds);

/// Calls `work` in a new process, the worker. If the worker is ended, calls `work` in another worker, and so on.
/// Returns the exit status of the worker that exits by itself.
///   - On SIGINT or SIGTERM the worker gets SIGTERM. If the worker still runs after ending_s, it is killed, and another
///     worker (Before::interrupted) shows what was measured. After a second signal no other worker starts. The status
///     is 130 if no worker exits by itself.
///   - If anything else ends a worker in a case, the next worker records the case and goes on. The record has the
///     status and the reason of end_case(); without end_case() the status is "failed".
///   - A worker that makes no progress for too long (Activity::end_if_silent_for) is ended. Time in which the watching
///     process itself is stopped hardly counts. While stdout or stderr is full and nobody reads it, the worker is not
///     ended.
/// The notes of a worker have these members, each of which may be missing:
///   resume       the command line with which another worker goes on; without it no worker follows
///   run, resumed values for the next worker's Before; `resumed` counts only in the first note that has `run`
///   cases        the list of the cases that the worker works on; Activity::at() is an index into this list
///   doing        what the worker does while it is at no case. If the worker is ended during this work and no worker
///                follows, watch() prints a message that names the work.
///   users_code   whether code of the user runs in the worker. This code may overwrite data that the worker uses later.
///                So if the worker is ended while it is at no case, its last case counts as failed, unless the worker
///                may have been compiling ahead.
///   status       the exit status if the worker is ended and no worker follows; without it the status is 1
int watch(const std::string& name, std::vector<std::string> arguments,
          const std::function<int(const std::vector<std::string>& arguments, const Worker& worker)>& work);

}  // namespace attn
