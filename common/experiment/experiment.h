// The loop every experiment shares: command line, cases, verify -> measure -> compare -> conclude, records.
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

/// One case made concrete: its tensors on the device, and its launches.
class Problem {
 public:
  virtual ~Problem() = default;
  /// The launches of the plan, once and in its order.
  virtual void encode(CommandEncoder& encoder) const = 0;
  /// Makes the outputs NaN, so that what the next launch does not write shows.
  virtual void poison() = 0;
  /// Compares what the last launch wrote with the oracle, and looks at the guard bands.
  virtual Check check() = 0;
  /// Writes the outputs to a safetensors file (--dump-output). Throws BadInput where there are none worth a file.
  virtual void dump(const std::string& path) const;
  /// What the launches do, where only the device can tell; nothing: what the plan says.
  virtual std::optional<Work> work() const { return std::nullopt; }
  /// What else the record is to say of the case: an object, or null.
  virtual Json values() const { return nullptr; }
};

/// A case about the host (compiling, say), which launches nothing. All that a sample needs is made ready before the
/// first.
class HostProblem {
 public:
  virtual ~HostProblem() = default;
  /// Does the work once; its seconds.
  virtual double sample() = 0;
  /// Judges what the last sample left.
  virtual Check check() = 0;
  /// Asked once the case is timed.
  virtual Json values() const { return nullptr; }
};

/// A file of the user's, beside --input, that an experiment takes.
struct FileOption {
  std::string name;  // with its dashes
  std::string help;
  /// The axes that the file fixes, one of them by what the file says: a case is then another one for another text.
  /// Throws BadInput.
  std::function<std::vector<Axis>(const std::string& path)> axes;
};

/// What makes an experiment this one and not another.
struct ExperimentSpec {
  std::string name;
  std::string summary;
  std::vector<AxisInfo> axes;
  /// The axes that tell the cases of one comparison apart (tile, variant); the rest is the shape.
  std::vector<std::string> compared_axes;
  /// The compared axes are tile and variant, and `complete` knows the best: it alone runs where the command line leaves
  /// one shape and names no tile. False: all of them run.
  bool default_tile = true;
  /// Naming one of these axes narrows the sweep to its blocks that name no other of them: who asks for one modifier
  /// does not get them all.
  std::set<std::string> narrowing_axes = {};
  /// What the experiment claims, registered before anything runs.
  std::function<std::vector<Claim>(const DeviceInfo& device)> claims = {};
  std::function<Sweep(const std::string& profile, const DeviceInfo& device)> sweep;
  /// Fills the axes that follow from others; also the default tile. Sees what the user did not name as absent.
  std::function<void(Case&, const DeviceInfo&)> complete = {};
  /// What a case does, or why it cannot. Pure. Throws BadInput for a case that makes no sense on any device.
  std::function<CasePlan(const Case&, const Setting&)> plan;
  /// Makes the problem of a plan that runs, whose launches are those of the plan. `make_host` is for plans about the
  /// host.
  std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const CasePlan&)> make;
  std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> make_host = {};
  /// Fixes the shape axes from --input; null where an experiment takes no input file.
  std::function<std::vector<Axis>(const std::string& input_path)> input_axes = {};
  std::vector<FileOption> file_options = {};
  /// What it sweeps where one of these files is given; empty: the same.
  std::function<Sweep(const std::string& profile, const DeviceInfo& device)> file_sweep = {};
};

/// A case under measurement: either of the two problems, and the record that it fills.
struct Trial {
  Case config;
  CasePlan plan = {};
  std::unique_ptr<Problem> problem = {};
  std::unique_ptr<HostProblem> host = {};
  Measurement record = {};
  double launch_s = 0;  // of the launch that was checked
};

/// The first duel of each claim, then the second of each ...: a budget that ends early leaves none out altogether. All
/// duels whose comparisons are gathered into one conclusion come with the first: a part of them would be no answer.
std::vector<Duel> in_turn(const std::vector<Claim>& claims, const std::vector<Duel>& duels);

class Experiment {
 public:
  Experiment(const ExperimentSpec& spec, Options options);
  ~Experiment();

  Device& device();
  PipelineCache& pipelines();
  uint64_t seed() const;
  /// --input, empty where there is none.
  const std::string& input() const;
  /// The path that one of the experiment's own file options gives, by the option's name; empty where it is not given.
  std::string file(const std::string& option) const;
  const Files& files() const;

  /// The cases of this run, after --axis, --shard, --resume and --replay; a group is measured interleaved.
  std::vector<std::vector<Case>> groups();
  /// Makes, launches and checks each case; a skip, a wrong result or a failure is recorded and left out.
  std::vector<Trial> verify(const std::vector<Case>& cases);
  /// Times the verified cases in turn, checks them again and records them.
  void measure(std::vector<Trial> trials);
  /// The same with at most this share of the budget that is left.
  void measure(std::vector<Trial> trials, double share);
  /// Measures each pair A B A', interleaved. Duels whose cases are not in the results are left out.
  void compare(const std::vector<Duel>& duels);
  /// The same for what an experiment's body asks step by step, with at most this share of the budget that is left; also
  /// in a replay, where compare() measures what the finding compared and nothing else.
  void compare(const std::vector<Duel>& duels, double share);
  /// Whether a conclusion about this hypothesis is wanted: in a replay of a finding only about its own.
  bool wants(const std::string& hypothesis) const;
  /// All of an experiment that needs no more than its spec: measures the groups, compares what the claims want
  /// compared, and concludes. Returns the exit status.
  int run();
  /// The last two steps of run(), for a body with other steps before.
  int compare_and_conclude();
  /// Judges, writes findings, prints table and verdicts. Returns the exit status.
  int conclude(const std::vector<Conclusion>& conclusions);

  const std::vector<Measurement>& results() const;  // this run's, and those resumed from
  const std::vector<Comparison>& comparisons() const;

 private:
  friend int run_experiment(int, const char* const*, const ExperimentSpec&, const std::function<int(Experiment&)>&,
                            const DeviceOpener&, const std::function<void(const std::vector<std::string>&)>&);
  struct State;
  std::unique_ptr<State> state_;
};

/// Takes the place of this process by the same program with other arguments; returns only if that fails.
using Restarter = std::function<void(const std::vector<std::string>& arguments)>;
void restart_process(const std::vector<std::string>& arguments);

/// Parses the command line, runs `body`, turns exceptions into one line and an exit status: 0 done; 1 a case was wrong,
/// failed or did not end; 2 bad arguments; 3 the device is not there; 130 interrupted, with everything measured so far
/// kept. After an interruption verify(), measure() and compare() do not return; run_experiment says how to go on. Nor
/// do they once a device is lost: that is recorded, and `restart` is called with the command line that goes on.
int run_experiment(int argc, const char* const* argv, const ExperimentSpec& spec,
                   const std::function<int(Experiment&)>& body = &Experiment::run,
                   const DeviceOpener& open_device = &Device::open, const Restarter& restart = &restart_process);

}  // namespace attn
