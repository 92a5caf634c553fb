#include "common/experiment/experiment.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

#include "common/base/error.h"
#include "common/base/shell.h"
#include "common/base/standard_streams.h"
#include "common/base/text_table.h"
#include "common/base/version.h"
#include "common/experiment/comparisons.h"
#include "common/experiment/environment.h"
#include "common/experiment/judge.h"
#include "common/experiment/record.h"
#include "common/experiment/report.h"
#include "common/experiment/run.h"
#include "common/experiment/selection.h"
#include "common/experiment/task.h"

namespace attn {
namespace {

volatile std::sig_atomic_t signal_received = 0;
bool ends_at_second_signal = true;

/// A second signal ends the process, except a worker, which the process that watches it ends. A terminal and `timeout`
/// may send one signal twice: to the process, and to its group. Signals that come within one_signal_s count as one.
void note_signal(int number) {
  constexpr double one_signal_s = 0.2;
  static timespec first{};
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (signal_received == 0) first = now;
  const double since_s =
      static_cast<double>(now.tv_sec - first.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - first.tv_nsec);
  if (ends_at_second_signal && since_s > one_signal_s) _exit(130);
  signal_received = number;
  wait_for_readers(false);
}

/// From now on SIGINT and SIGTERM are noted. A write to a closed pipe, or beyond the allowed size of a file, fails and
/// does not end the process.
void note_signals(bool is_worker) {
  signal_received = 0;
  ends_at_second_signal = !is_worker;
  wait_for_readers(true);
  struct sigaction action{};
  action.sa_handler = note_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
  for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);
}

std::string words_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) ? "the host has no memory left" : first_line(error.what());
}

}  // namespace

/// What only the process has that gives the tasks.
struct Giver {
  Giver(const Given& given, const Json& replayed, const WorkerStarter& start)
      : plans(given.spec, {given.info, given.options.files}),
        selection(given, plans, replayed),
        recorder(given, new_run(given, replayed)),
        tasks(given, recorder, start),
        comparisons(given, selection, recorder, tasks),
        judge(given, selection, recorder, tasks, comparisons) {
    const std::vector<Case> cases = selection.cases();
    recorder.set_label_axes(varying_axes(cases));
    asked_for = cases.size() == 1 && (!given.options.input.empty() || !given.options.dump_output.empty());
  }

  Plans plans;
  Selection selection;
  Recorder recorder;
  Tasks tasks;
  Comparisons comparisons;
  Judge judge;
  bool asked_for = false;  // the run has --input or --dump-output, and one case
};

struct Experiment::State {
  State(const ExperimentSpec& given, const Options& taken, const DeviceOpener& open_device)
      : spec(given), options(taken) {
    require_sources();
    device = open_device(options.device);
    if (options.threadgroup_memory_bytes) device->limit_threadgroup_memory(*options.threadgroup_memory_bytes);
    info = device->info();
    pipelines = std::make_unique<PipelineCache>(*device, PipelineCache::default_folder());
  }

  /// Does what the command line asks for, as the process that gives tasks. Returns the exit status.
  int run(Experiment& lab, const Json& replayed, const WorkerStarter& start,
          const std::function<int(Experiment&)>& body);

  std::unique_ptr<Device> device;
  DeviceInfo info;
  std::unique_ptr<PipelineCache> pipelines;
  const ExperimentSpec spec;  // destroyed before the device, because `make` may keep buffers
  const Options options;
  bool is_part = false, opened = false;  // opened: the files of records
  std::unique_ptr<Giver> giver;          // null in a worker
  std::unique_ptr<Runner> runner;        // null in the process that gives tasks
};

std::vector<Duel> in_turn(const std::vector<Claim>& claims, const std::vector<Duel>& duels) {
  std::set<std::string> whole;
  for (const Claim& claim : claims) {
    if (claim.gather) whole.insert(claim.hypothesis.id);
  }
  std::map<std::string, int> seen;
  std::vector<std::pair<int, Duel>> ranked;
  for (const Duel& duel : duels)
    ranked.emplace_back(whole.contains(duel.hypothesis) ? 0 : seen[duel.hypothesis]++, duel);
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Duel> ordered;
  for (auto& [rank, duel] : ranked) ordered.push_back(std::move(duel));
  return ordered;
}

void Problem::dump(const std::string&) const { throw BadInput("--dump-output: this case cannot write its output"); }

bool interrupted() { return signal_received != 0; }

Experiment::Experiment(const ExperimentSpec& spec, const Options& options, const DeviceOpener& open_device)
    : state_(std::make_unique<State>(spec, options, open_device)) {}
Experiment::~Experiment() = default;

Device& Experiment::device() { return *state_->device; }
const DeviceInfo& Experiment::info() const { return state_->info; }
PipelineCache& Experiment::pipelines() { return *state_->pipelines; }
uint64_t Experiment::seed() const { return state_->options.seed; }
bool Experiment::is_part() const { return state_->is_part; }
const std::string& Experiment::input() const { return state_->options.input; }
std::string Experiment::file(const std::string& option) const { return file_of(state_->options.files, option); }
const Files& Experiment::files() const { return state_->options.files; }
const std::vector<std::vector<Case>>& Experiment::groups() const { return state_->giver->selection.groups(); }
const std::vector<Measurement>& Experiment::results() const { return state_->giver->recorder.results(); }
const std::vector<Comparison>& Experiment::comparisons() const { return state_->giver->comparisons.all(); }

std::vector<Case> Experiment::unmeasured(const std::vector<Case>& cases) {
  Giver& run = *state_->giver;
  std::vector<Case> missing;
  std::ranges::copy_if(cases, std::back_inserter(missing), [&](const Case& config) {
    return !run.recorder.has(config) && !run.selection.take_over(run.recorder, config);
  });
  return missing;
}

void Experiment::measure(const std::vector<std::vector<Case>>& groups, double share) {
  Giver& run = *state_->giver;
  Task task{.groups = groups, .budget_s = run.tasks.budget_left(), .asked_for = run.asked_for};
  if (task.empty()) return;
  // The selected cases without a record share the time that the sweep may still take.
  const std::vector<Case> selected = run.selection.cases();
  const auto left = std::ranges::count_if(selected, [&](const Case& config) { return !run.recorder.has(config); });
  const auto cases = static_cast<double>(task.cases().size());
  const bool to_compare = !run.judge.claims().empty();
  const double reserved_s = to_compare ? compare_share * state_->options.budget(state_->info) : 0;
  task.groups_s = std::min(share * task.budget_s,
                           (task.budget_s - reserved_s) * cases / std::max(cases, static_cast<double>(left)));
  run.tasks.run(std::move(task));
}

void Experiment::compare(const std::vector<Duel>& duels) {
  Giver& run = *state_->giver;
  if (!state_->options.only_verify) run.comparisons.repeat(run.judge.claims(), duels);
}

void Experiment::compare(const std::vector<Duel>& duels, double share) {
  Giver& run = *state_->giver;
  if (!state_->options.only_verify) run.comparisons.compare(duels, share * run.tasks.budget_left());
}

bool Experiment::wants(const std::string& hypothesis) const {
  return !state_->options.only_verify && state_->giver->selection.wants(hypothesis);
}

int Experiment::run() {
  measure(groups());
  return compare_and_conclude();
}

int Experiment::compare_and_conclude() {
  const Giver& run = *state_->giver;
  compare(in_turn(run.judge.claims(), duels(run.judge.claims(), results())));
  return conclude(attn::conclude(run.judge.claims(), results(), comparisons(), run.comparisons.processes()));
}

int Experiment::conclude(const std::vector<Conclusion>& conclusions) {
  if (interrupted()) throw Interrupted{};
  Giver& run = *state_->giver;
  if (!state_->options.only_verify && run.tasks.measured_s() > 0) run.tasks.run({.last = true});
  return run.judge.conclude(conclusions);
}

Taker task_taker(const ExperimentSpec& spec, const Options& options, const DeviceOpener& open_device) {
  return [=, lab = std::shared_ptr<Experiment>()](const Json& json, const Port& port) mutable {
    try {
      const Task task = Task::from_json(json);
      if (!lab) {
        Options taken = options;
        take_conditions(taken, spec, task.run);
        lab = std::make_shared<Experiment>(spec, taken, open_device);
        Experiment::State& state = *lab->state_;
        const auto make = [lab = lab.get()](const auto& maker) {
          return [lab, maker](const Case& config, const CasePlan& plan) { return maker(*lab, config, plan); };
        };
        state.runner = std::make_unique<Runner>(
            state.spec, state.options, *state.device, *state.pipelines,
            Runner::Makers{make(state.spec.make), make(state.spec.make), make(state.spec.make_host)});
      }
      lab->state_->is_part = task.part > 0;
      if (task.prepare) {
        std::optional<CompilationLimit> limit;
        if (port.may_exit) limit.emplace(port);
        spec.prepare(*lab);
      }
      lab->state_->runner->run(task, port);
      return true;
    } catch (const Lost&) {
    } catch (const BadInput& error) {
      port.send({{"error", error.what()}, {"status", 2}});
    } catch (const DeviceMissing& error) {
      port.send({{"error", first_line(error.what())}, {"status", 3}});
    } catch (const std::exception& error) {
      // The error may come from a user's function that overwrote data of this process.
      const bool in_case = port.activity.at() >= 0;
      port.send(in_case ? Json{{"lost", "failed"}, {"reason", words_of(error)}}
                        : Json{{"error", words_of(error)}, {"status", 1}});
    }
    return false;
  };
}

namespace {

/// Opens the files of records, takes over what --resume finds, and says what is to come.
void open_records(const ExperimentSpec& spec, const Options& options, const DeviceInfo& info, Giver& run) {
  if (run.selection.replays()) {
    const Json& replayed = run.selection.replayed();
    const std::string its_device = (run.selection.replays_finding() ? replayed.at("data") : replayed).at("device");
    if (its_device != device_name(info)) {
      run.recorder.tell(fmt::format("the record is of {}; this run is on {}", with_one_unit(its_device),
                                    with_one_unit(device_name(info))));
    }
  }
  run.recorder.open();
  if (options.resume) run.selection.resume(run.recorder);
  // The runs that scripts/run_all starts need no note: they all have --resume, and each rank's run has its --shard.
  const int ranks = options.resume || options.shard_count > 1 || run.selection.replays() ? 1 : ranks_started_here();
  if (ranks > 1) {
    run.recorder.tell(
        fmt::format("each of the {} ranks measures everything; start scripts/run_all under the launcher, or give each "
                    "rank its part with --shard I/{}",
                    ranks, ranks));
  }
  const size_t cases = run.selection.cases().size();
  if (!options.quiet && !options.only_verify && cases > 0) {
    run.recorder.progress().note(fmt::format("cases to measure: {}, on {}, in at most about {}", cases,
                                             with_one_unit(device_name(info)), format_duration(options.budget(info))));
  }
  if (spec.prepare && has_files(options.files)) run.tasks.run({.prepare = true});
}

/// The command line that goes on with this run.
std::string resuming(const Options& options) {
  std::vector<std::string> arguments = options.arguments;
  if (!options.resume && options.replay.empty()) arguments.emplace_back("--resume");
  return shell_command(arguments);
}

}  // namespace

int Experiment::State::run(Experiment& lab, const Json& replayed, const WorkerStarter& start,
                           const std::function<int(Experiment&)>& body) {
  // A GPU may take only one process at a time, and its memory is for the worker.
  pipelines.reset();
  device.reset();
  giver = std::make_unique<Giver>(Given{spec, options, info}, replayed, start);
  const auto& groups = giver->selection.groups();
  if (options.shard_count == 1) {  // another shard may have the value
    for (const std::string& text : unmet_values(spec, options, info, groups)) giver->recorder.tell(text);
  }
  if (options.list) {
    to_stdout(options.json ? claims_json(spec.name, giver->judge.claims())
                           : attn::list(spec, options, groups, hypotheses(giver->judge.claims())));
    return 0;
  }
  if (options.dry_run) {
    to_stdout(attn::dry_run(spec, options, groups, info, std::ref(giver->plans)));
    return 0;
  }
  if (info.has("untimed")) {
    if (!options.only_verify) {
      throw BadInput(fmt::format("{} takes no times; --only verify checks its results", info.spec));
    }
    DeviceInfo timed = info;
    std::erase(timed.features, "untimed");
    if (!giver->selection.replays() && select_cases(spec, options, timed) != groups) {
      giver->recorder.tell(info.spec + " takes no times: the sweep has shorter sequences than on other devices");
    }
  }
  open_records(spec, options, info, *giver);
  opened = true;
  if (interrupted()) throw Interrupted{};
  if (!giver->selection.replays() || giver->selection.replays_finding()) return body(lab);
  lab.measure(groups);
  return giver->judge.compare_with_replayed();
}

int run_experiment(int argc, const char* const* argv, const ExperimentSpec& spec,
                   const std::function<int(Experiment&)>& body, const DeviceOpener& open_device,
                   const WorkerStarter& start) {
  keep_standard_streams();
  // spdlog's default logger writes to stdout, which is for results only.
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::stderr_color_sink_mt>()));
  std::optional<Options> options;
  std::optional<Experiment> lab;
  const auto run = [&] {
    try {
      options = parse_options(argc, argv, spec);
    } catch (const BadInput& error) {
      throw BadInput(printable(error.what()));  // a word of the command line may have control characters
    }
    if (!options) return 0;
    note_signals(options->task);
    if (options->task) return take_tasks(task_taker(spec, *options, open_device));
    const Json replayed = find_replayed(*options, spec);
    lab.emplace(spec, *options, open_device);
    return lab->state_->run(*lab, replayed, start, body);
  };
  /// Prints the message and, if there are any, the results so far.
  const auto end = [&](std::string message, int status, bool with_results) {
    Giver* const giver = lab ? lab->state_->giver.get() : nullptr;
    if (giver) giver->recorder.progress().clear();
    if (giver && with_results && (status == 130 || !giver->recorder.results().empty())) {
      if (!options->json && !giver->recorder.results().empty()) to_stdout(giver->judge.table_text() + "\n");
      message += "; " + giver->recorder.kept();
    }
    if (status == 130) message += "; go on with: " + resuming(*options);
    to_stderr(fmt::format("{}: {}\n", spec.name, message));
    return status;
  };
  int status = 0;
  try {
    status = run();
  } catch (const Interrupted&) {
    status = end("interrupted", 130, true);
  } catch (const BadInput& error) {
    status = end(error.what(), 2, false);
  } catch (const DeviceMissing& error) {
    status = end(first_line(error.what()), 3, false);
  } catch (const std::exception& error) {
    status = end(words_of(error), 1, true);
  }
  to_stdout("");
  if (!stdout_lost()) return status;
  const bool has_records = lab && lab->state_->opened;
  const std::string records =
      has_records ? fmt::format("; the records are in {} and {}", options->measurements_path, options->findings_path)
                  : "";
  return end("stdout cannot be written" + records, std::max(status, 1), false);
}

}  // namespace attn
