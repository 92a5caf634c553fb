// Tasks: the one protocol between the processes of a run. A task is a list of cases and of pairs of cases. One process
// gives tasks; another process, which a crash, a hang or a lost device may end at any moment, carries them out and
// answers with records. The process that gives tasks launches no kernel and calls no function of a user. It keeps the
// records, so that a process that ends badly costs the run one case.
//   Task      the cases, and what a process must know to run them
//   Port      the end at which the process that carries out tasks answers
//   Worker    a process that carries out tasks, as the process that gives them sees it
//   Tasks     gives tasks to workers, and starts another worker where one ends badly
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/experiment/experiment.h"
#include "common/experiment/record.h"

namespace attn {

/// The share of a budget that is for comparisons, where there are any.
inline constexpr double compare_share = 1 / 2.;

Json to_json(const Duel& duel);

/// What a process has to measure.
struct Task {
  std::vector<std::vector<Case>> groups = {};  // the cases of a group take turns
  std::vector<Duel> duels = {};                // pairs of cases to compare
  int part = 0;   // the number of this process among those that repeat measurements, from 1; 0: the sweep
  int parts = 1;  // the number of these processes
  double budget_s = 0, groups_s = 0;  // seconds for the whole task, and for its groups
  bool prepare = false;               // run ExperimentSpec::prepare
  bool last = false;                  // measure the ceilings again, now that the device is warm
  bool asked_for = false;             // the run has --input or --dump-output, and one case
  bool compile_ahead = true;          // false after a process ended while it compiled several kernels at once
  Json run = {};                      // Recorder::run()

  bool empty() const { return groups.empty() && duels.empty(); }
  /// The cases of the groups, then baseline and contender of each pair. Activity::at() is an index into this list.
  std::vector<Case> cases() const;
  /// Removes a case from the groups, and with `pairs` the pairs that have the case. Returns whether there were any.
  bool remove(const Case& config, bool pairs);
  Json json() const;
  static Task from_json(const Json& json);
};

/// What a worker does, in memory that both processes see.
class Activity {
 public:
  /// All processes that name this file share the memory. Without `file`, this process has it alone. Throws
  /// std::bad_alloc.
  explicit Activity(const std::string& file = "");
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  /// A step is done: a worker that calls this function is not hung.
  void progress();
  /// The number of calls of progress() and at().
  int64_t progresses() const;
  /// The case that the worker is at, or was at last: an index into Task::cases(). -1 if the worker has come to none, or
  /// compiles several kernels at once.
  void at(int number);
  int at() const;

 private:
  struct Shared;
  Shared* shared_;
};

/// The end at which a worker answers. The messages:
///   {measurement, samples, seconds}   the record of a case, without the fields that tell the run; samples may be null
///   {duel, samples, seconds}          a pair; samples is null if the pair was not measured
///   {ceilings, flush_selftest}        what is known about the device
///   {begin}, {note}                   texts for Progress
///   {lost, reason}                    the worker ends: the status and the reason for the record of its case
///   {error, status}                   the worker ends, and the run: a message, and the exit status
///   {done}                            the worker waits for another task
struct Port {
  std::function<void(const Json& message)> send;
  Activity& activity;
  bool may_exit = false;  // whether a compiler that takes too long may end this process
};

/// Carries out the tasks that the process sends that started this process. Returns the exit status. Throws BadInput in
/// a process that no run started.
int take_tasks(const Taker& taker);

/// While an object of this class exists, it ends the process if a compilation takes too long or too much memory.
/// Nothing else can end a compiler that runs in this process.
class CompilationLimit {
 public:
  static constexpr double most_s = 60, most_bytes = 4e9;
  explicit CompilationLimit(const Port& port, double seconds = most_s, double bytes = most_bytes);
  ~CompilationLimit();
  CompilationLimit(const CompilationLimit&) = delete;
  CompilationLimit& operator=(const CompilationLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::thread thread_;
};

/// Gives tasks to workers. Owns the worker of the sweep, and what workers tell about the device.
class Tasks {
 public:
  /// What a task gave.
  struct Found {
    int part = 0;
    std::vector<Measurement> measurements = {};  // of a repetition; the recorder has those of the sweep
    std::vector<std::pair<Duel, PairSamples>> pairs = {};
  };

  Tasks(const Given& given, Recorder& recorder, WorkerStarter start)
      : given_(given), recorder_(recorder), start_(std::move(start)) {}

  /// Has a task carried out by the worker of the sweep, which stays for the next task. A case that ends its worker is
  /// recorded as failed, and another worker goes on. Throws Interrupted; BadInput and DeviceMissing of the worker;
  /// std::runtime_error if a worker does not start, or ends in no case.
  Found run(Task task) {
    Found found;
    carry_out(std::move(task), sweep_, found);
    return found;
  }
  /// Has a task carried out by a worker of its own. If this worker does not start, or ends in no case, the rest of the
  /// task is left out.
  Found repeat(Task task);
  double measured_s() const { return measured_s_; }
  double budget_left() const { return given_.options.budget(given_.info) - measured_s_; }
  bool failed() const { return failed_; }
  const Ceilings& ceilings() const { return ceilings_; }
  const Json& flush_selftest() const { return flush_selftest_; }

 private:
  void carry_out(Task task, Worker& worker, Found& found);
  /// Takes a message of the worker. A result leaves the task.
  void take(const Json& message, Task& left, Found& found);
  /// Records the case that ended a worker, and removes it from the task. `cases` are Task::cases() when the worker got
  /// the task. Throws std::runtime_error if the worker ended in no case.
  void lose(const WorkerEnd& end, const std::vector<Case>& cases, Task& left);
  double most_silent_s() const;

  const Given given_;
  Recorder& recorder_;
  const WorkerStarter start_;
  Worker sweep_;
  bool compile_ahead_ = true, failed_ = false, told_no_flush_ = false;
  double measured_s_ = 0;
  Ceilings ceilings_;
  Json flush_selftest_;
};

}  // namespace attn
