// Runs cases in a worker: verifies them, measures them in turn, compares pairs. The Runner owns what a worker makes on
// the device; DeviceRates owns what is known about the device itself. The results go to the port of the worker.
//   verify.cpp   makes, launches and checks a case
//   measure.cpp  times cases, which take turns
//   compare.cpp  times pairs of cases
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/stopwatch.h"
#include "common/experiment/busy.h"
#include "common/experiment/ceilings.h"
#include "common/experiment/experiment.h"
#include "common/experiment/sampling.h"
#include "common/experiment/selection.h"
#include "common/experiment/task.h"

namespace attn {

/// Thrown to end a worker that can no longer use its device, once the case that lost the device is recorded.
struct Lost {};

/// The least number of rounds in each profile.
struct Rounds {
  int quick, full;
};

/// Other programs that use the device slow it by up to this factor.
inline constexpr double most_slowed = 4;

/// A case under measurement: a problem or a host problem, and the record that the loop fills.
struct Trial {
  Case config;
  CasePlan plan = {};
  std::unique_ptr<Problem> problem = {};
  std::unique_ptr<HostProblem> host = {};
  Measurement record = {};
  double launch_s = 0;  // seconds of the launch or sample that was checked
  int number = 0;       // of the case, in Task::cases()

  bool ok() const { return record.status == "ok"; }
  /// The sampler of the host's work.
  Sampler host_sampler() const {
    return [this]() -> std::vector<double> { return {host->sample()}; };
  }
};

/// The launches of one sample of a trial.
inline int launches_of_sample(Device& device, const Trial& trial) {
  // If the launch for the check took this long, a sample needs only one launch, even if other programs slowed the
  // launch.
  constexpr double surely_long_s = 50e-3;
  return trial.host || trial.launch_s > surely_long_s ? 1 : launches_per_sample(device, *trial.problem);
}

/// The ceilings of the device, and the flush of its caches.
class DeviceRates {
 public:
  DeviceRates(Device& device, PipelineCache& pipelines, const Options& options)
      : device_(device), pipelines_(pipelines), options_(options) {}
  const Ceilings& ceilings();
  /// Measures the ceilings again, and keeps the larger value of each ceiling.
  void raise();
  /// The flush for cold samples; null where the flush has no memory or fails its self-test.
  const CacheFlush* cold_flush();
  /// The reason why a launch of this work takes longer than --max-launch even at the device's ceiling; nothing if the
  /// launch may be short enough. Measures the ceilings several times before it gives a reason.
  std::optional<std::string> too_long(const Work& work);
  /// Returns the record as JSON. If a rate is more than 5 % above its ceiling, the ceilings are measured again, because
  /// other programs may have slowed their measurement. If the rate stays above its ceiling, the record has no shares of
  /// ceilings, and `tell` gets the reason. If the rate stays above four times its ceiling, or if a number of the record
  /// is not finite, the case counts as failed.
  Json record_json(Measurement& record, const std::function<void(const std::string&)>& tell);
  /// {ceilings, flush_selftest}; null before anything was measured.
  Json json() const;

 private:
  Ceilings measured();

  Device& device_;
  PipelineCache& pipelines_;
  const Options& options_;
  std::optional<CacheFlush> flush_;
  std::optional<FlushTest> flush_test_;
  std::optional<Ceilings> ceilings_;
  int measured_ = 0;  // how often
};

class Runner {
 public:
  using Make = std::function<std::unique_ptr<Problem>(const Case&, const CasePlan&)>;
  struct Makers {
    Make problem;
    /// Keeps its own inputs. In a comparison it makes A', the baseline that is measured again. So A' shares no tensors
    /// with A, the baseline.
    Make apart;
    std::function<std::unique_ptr<HostProblem>(const Case&, const CasePlan&)> host;
  };
  Runner(const ExperimentSpec& spec, const Options& options, Device& device, PipelineCache& pipelines, Makers makers)
      : spec_(spec),
        options_(options),
        device_(device),
        pipelines_(pipelines),
        makers_(std::move(makers)),
        plans_(spec, {device.info(), options.files}),
        rates_(device, pipelines, options) {}

  /// Carries out a task. Throws Lost; BadInput, for example if --dump-output names a case that cannot run; and what no
  /// case can be blamed for.
  void run(const Task& task, const Port& port);

 private:
  // verify.cpp
  /// Compiles the kernels of the cases, several at once. Ignores errors, because verify() meets them again.
  void compile_ahead(const std::vector<Case>& cases);
  /// Makes and checks the trial of a case. For a case that cannot be measured, stores the record and returns nothing.
  std::optional<Trial> verify(const Case& config, int number);
  Trial new_trial(const Case& config, int number);
  void make(Trial& trial, const Make& make_problem);
  /// Runs the plan once on poisoned outputs (or takes one sample of the host's work), and checks the outputs. Problems
  /// may share their outputs, so no other problem may run before the check.
  void launch_and_check(Trial& trial);
  /// Launches a trial again if its launch was too long, and keeps the shortest time, because other programs may have
  /// slowed the launch.
  void launch_again(Trial& trial);
  /// Checks a trial again after timing. If the trial has launches, this function runs the plan once more and checks the
  /// outputs. Work of the host is checked without another sample, which might take long.
  void check_again(Trial& trial);
  /// Takes a kernel from the cache, or compiles it. A CompilationLimit holds for the compilation of a user's text.
  const Pipeline& pipeline(const KernelSource& source);
  Json pipeline_json(const Launch& launch);
  /// Runs a step of a case. An exception becomes the status of the record, except BadInput and DeviceMissing. A kernel
  /// that faults on the host may have overwritten any data of this process. So the worker then ends, and the process
  /// that gave the task records the case.
  void guarded(Measurement& record, const std::function<void()>& step);
  /// Returns the reason why a case is too long, if any. If the user asked for this case alone, tells the reason, and
  /// returns nothing.
  std::optional<std::string> unless_asked_for(const std::optional<std::string>& reason);
  /// Sends the record of a case that is finished, and the samples of its main time.
  void store(Measurement record, int launches_per_sample = 1, const Json& samples = nullptr);

  // measure.cpp
  void run_groups();
  void measure(std::vector<Trial> trials, double most_s);
  /// Seconds of the task so far: of measuring or, in a process that repeats measurements, of everything, because the
  /// run waits until that process ends.
  double spent_s() const { return task_.part > 0 ? since_task_.seconds() : measured_s_; }
  double groups_left_s() const { return task_.groups_s - spent_s(); }
  TimingPolicy policy(const Rounds& rounds, double budget_s) const;
  /// Whether the case is judged by its time with cold caches.
  bool judged_cold(const Trial& trial);
  void tell(const std::string& what, const std::string& text) const { port_->send({{what, text}}); }
  /// Sends a result with the seconds since the last one.
  void send(Json result);

  // compare.cpp
  void run_duels();
  /// The samples of one pair. Empty where a result was wrong or a step failed, or after an interruption. Wrong results
  /// and failures are recorded. `number` is the number of the baseline in Task::cases().
  std::optional<PairSamples> sample_pair(const Duel& duel, int number, double budget_s);
  /// Lets baseline, contender and the repeated baseline take turns.
  PairSamples take_turns(const std::vector<Trial>& trials, double budget_s);

  const ExperimentSpec& spec_;
  const Options& options_;
  Device& device_;
  PipelineCache& pipelines_;
  const Makers makers_;
  Plans plans_;
  DeviceRates rates_;
  std::set<std::string> compiler_messages_;            // already told
  std::map<std::string, CodeContents> code_contents_;  // by code_sha256
  const CoreTimes started_ = core_times();
  // of the task
  Task task_;
  std::vector<std::string> label_axes_;  // the axes that progress names
  const Port* port_ = nullptr;
  Stopwatch since_task_;
  double measured_s_ = 0, sent_s_ = 0;
  size_t cases_left_ = 0;
};

}  // namespace attn
