// The loop that every experiment shares: command line, cases, verify -> measure -> compare -> conclude, records.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/data/compare.h"
#include "common/device/device.h"
#include "common/device/pipeline_cache.h"
#include "common/experiment/options.h"
#include "common/experiment/setting.h"
#include "common/launch/plan.h"
#include "common/records/case.h"
#include "common/records/finding.h"
#include "common/records/timing.h"

namespace attn {

class Experiment;

/// One case, ready to run: its tensors on the device, and its launches.
class Problem {
 public:
  virtual ~Problem() = default;
  /// Encodes each launch of the plan once, in the plan's order.
  virtual void encode(CommandEncoder& encoder) const = 0;
  /// Makes the outputs NaN, so that the check finds outputs that the next launch does not write.
  virtual void poison() = 0;
  /// Compares the outputs of the last launch with the oracle, and checks the guard bands of the buffers.
  virtual Check check() = 0;
  /// Writes the outputs to a safetensors file (--dump-output). Throws BadInput if the problem cannot write them.
  virtual void dump(const std::string& path) const;
  /// The work of the launches, for a problem whose work is known only after launches on the device. Empty: the plan's
  /// work counts.
  virtual std::optional<Work> work() const { return std::nullopt; }
  /// Further values of the case for the record: an object, or null.
  virtual Json values() const { return nullptr; }
};

/// A case about work of the host, for example compiling. The constructor prepares all that sample() needs.
class HostProblem {
 public:
  virtual ~HostProblem() = default;
  /// Does the work once; returns its seconds.
  virtual double sample() = 0;
  /// Checks the result of the last sample.
  virtual Check check() = 0;
  /// As Problem::values(). Called after the case is timed.
  virtual Json values() const { return nullptr; }
};

/// An option of the command line, other than --input, by which an experiment takes a user's file.
struct FileOption {
  std::string name;  // with its dashes
  std::string help;
  /// The axes that the file fixes. One value depends on the file's text, so that different texts make different cases.
  /// Throws BadInput.
  std::function<std::vector<Axis>(const std::string& path)> axes;
};

struct ExperimentSpec {
  std::string name;
  std::string summary;
  std::vector<AxisInfo> axes;
  /// The axes in which the cases of one comparison differ (tile, variant). The other axes are the shape.
  std::vector<std::string> compared_axes;
  /// True: the compared axes are tile and variant, and `complete` sets the default tile. If the command line names a
  /// shape axis, selects a single shape and names no tile, then only the default tile runs.
  bool default_tile = true;
  /// If the command line names some axes of this set, the sweep's blocks with other axes of this set are left out. For
  /// example, a user who names one modifier gets no blocks of other modifiers.
  std::set<std::string> narrowing_axes = {};
  /// The claims of the experiment, registered before anything runs.
  std::function<std::vector<Claim>(const DeviceInfo& device)> claims = {};
  /// The printed table compares cases that differ only in these axes. Empty: `compared_axes`.
  std::vector<std::string> alternatives = {};
  std::function<Sweep(const std::string& profile, const DeviceInfo& device)> sweep;
  /// The sweep of the profile "study": the cases of the published study (docs/study.md). Empty: the profile is refused.
  std::function<Sweep(const DeviceInfo& device)> study_sweep = {};
  /// Sets axes that are absent from the case: those that follow from other axes, and the default tile.
  std::function<void(Case&, const DeviceInfo&)> complete = {};
  /// A pure function. Throws BadInput for a case that no device can run.
  std::function<CasePlan(const Case&, const Setting&)> plan;
  /// Makes the problem of a plan that can run, with the plan's launches. `make_host` is for plans about the host
  /// (Plan::host).
  std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> make;
  std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> make_host = {};
  /// The shape axes that the file of --input fixes; empty for an experiment without --input.
  std::function<std::vector<Axis>(const std::string& input_path)> input_axes = {};
  std::vector<FileOption> file_options = {};
  /// The sweep of a run with a file of `file_options`, which replaces `sweep`; empty: the profile's sweep.
  std::function<Sweep(const std::string& profile, const DeviceInfo& device)> file_sweep = {};
  /// Threadgroup memory of the published study's kernel, for --dry-run; 0: the study has no such kernel.
  std::function<size_t(const Case&, const DeviceInfo& device)> study_bytes = {};
  /// Folders of the source tree whose files, in addition to the kernels, decide what the cases run. The records have
  /// their hashes.
  std::vector<std::string> source_folders = {};
  /// One step of a case may take this many seconds (at most 120 with a file of `file_options`) plus the seconds of
  /// --max-launch. A step compiles a kernel, makes the inputs, launches, checks, or samples the host's work. A process
  /// that takes longer counts as hung, and is ended.
  double most_silent_s = 1200;
  /// Runs once before the first case, in the process that will measure the cases. It compiles the user's texts, for
  /// example. Throws BadInput. If a compiler takes too long or too much memory, the run ends with status 2.
  std::function<void(Experiment&)> prepare = {};
};

/// Orders duels (pairs of cases to compare): the first duel of each claim, then the second of each, and so on, so that
/// a short budget leaves out no claim. All duels of a claim with Claim::gather come with the first duels, because the
/// conclusion needs several of them.
std::vector<Duel> in_turn(const std::vector<Claim>& claims, const std::vector<Duel>& duels);

/// How a worker, a process that carries out tasks (task.h), ended a task.
struct WorkerEnd {
  bool done = true;            // the task is done, and the worker waits for another one; else the worker has ended
  int at = -1;                 // Activity::at()
  std::string status, reason;  // of the case that ended the worker
};
/// Sends a task to a worker, and calls `take` with each answer. The destruction of the last copy ends the worker.
using Worker = std::function<WorkerEnd(const Json& task, const std::function<void(const Json&)>& take)>;
/// Starts a worker with these arguments (argv), which is ended after `most_silent_s` seconds without progress. Throws
/// std::runtime_error if no process can be started.
using WorkerStarter = std::function<Worker(const std::vector<std::string>& arguments, double most_silent_s)>;
Worker start_worker(const std::vector<std::string>& arguments, double most_silent_s);

struct Port;
/// Carries out a task. Returns false if the process must take no other task, for example because its device is lost.
using Taker = std::function<bool(const Json& task, const Port& port)>;

/// The taker of a process with these options. The first task gives device, seed and files.
Taker task_taker(const ExperimentSpec& spec, const Options& options, const DeviceOpener& open_device);

/// One run of an experiment, as its body sees it; in a worker, as the makers of problems see it.
class Experiment {
 public:
  /// Opens the device. This object only makes problems: run_experiment() makes one that runs.
  Experiment(const ExperimentSpec& spec, const Options& options, const DeviceOpener& open_device = &Device::open);
  ~Experiment();

  /// The device of a worker. The process that gives tasks has closed its device.
  Device& device();
  PipelineCache& pipelines();
  const DeviceInfo& info() const;
  uint64_t seed() const;
  /// Whether this process is one of --processes, which measures again cases that the run's sweep has checked.
  bool is_part() const;
  /// The path of --input, or empty.
  const std::string& input() const;
  /// The path of one of the experiment's own file options, or empty.
  std::string file(const std::string& option) const;
  const Files& files() const;

  /// The cases that the command line selects. The cases of a group take turns while they are measured.
  const std::vector<std::vector<Case>>& groups() const;
  /// Takes over the records of these cases from the run that --resume continues, and returns the cases that still have
  /// no record. For cases that are not in groups().
  std::vector<Case> unmeasured(const std::vector<Case>& cases);
  /// Makes, launches, checks, times and records each case, with at most this share of the budget that is left. With
  /// --only verify the cases are not timed, and compare() does nothing.
  void measure(const std::vector<std::vector<Case>>& groups, double share = 1);
  /// Measures each pair as A B A' (baseline, contender, baseline again), interleaved. Duels with a case that has no
  /// timed and correct result are left out. A replay of a finding measures the finding's pair instead of `duels`. With
  /// --processes the cases of the claims are also measured again.
  void compare(const std::vector<Duel>& duels);
  /// Measures each pair in one process only, with at most this share of the budget that is left. For a body that asks
  /// for duels step by step. A replay of a finding, too, measures all of `duels` here.
  void compare(const std::vector<Duel>& duels, double share);
  /// Whether the run wants a conclusion about this hypothesis: a replay, for example, wants at most one.
  bool wants(const std::string& hypothesis) const;
  /// Measures the groups, compares the duels of the claims, and concludes. Returns the exit status.
  int run();
  /// The last two steps of run(), for a body that replaces the earlier steps.
  int compare_and_conclude();
  /// Judges the conclusions, writes the findings, and prints the table and the answer. Returns the exit status.
  int conclude(const std::vector<Conclusion>& conclusions);

  const std::vector<Measurement>& results() const;  // results of this run, and of the run that --resume continues
  const std::vector<Comparison>& comparisons() const;

 private:
  friend Taker task_taker(const ExperimentSpec&, const Options&, const DeviceOpener&);
  friend int run_experiment(int, const char* const*, const ExperimentSpec&, const std::function<int(Experiment&)>&,
                            const DeviceOpener&, const WorkerStarter&);
  struct State;
  std::unique_ptr<State> state_;
};

/// Parses the command line, runs `body`, and turns exceptions into a message and an exit status: 0 done; 1 a case was
/// wrong or failed, a process of --processes failed, or a record or stdout could not be written; 2 bad arguments; 3 the
/// device is missing; 4 no case could run; 130 interrupted, with all measurements so far kept. After an interruption
/// measure(), compare() and conclude() throw; run_experiment() then prints the table of the recorded cases, and the
/// command that continues the run.
///
/// This process gives tasks to workers. A worker that ends badly costs one case. A worker has the option --task.
int run_experiment(int argc, const char* const* argv, const ExperimentSpec& spec,
                   const std::function<int(Experiment&)>& body = &Experiment::run,
                   const DeviceOpener& open_device = &Device::open, const WorkerStarter& start = &start_worker);

}  // namespace attn
