#include "common/experiment/experiment.h"

#include <fmt/format.h>
#include <spawn.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "common/base/error.h"
#include "common/base/shell.h"
#include "common/base/standard_streams.h"
#include "common/base/text_table.h"
#include "common/experiment/state.h"
#include "common/experiment/watch.h"

namespace attn {
namespace {

volatile std::sig_atomic_t signal_received = 0;

/// Notes SIGINT and SIGTERM. A second signal of the same kind has its usual effect, except in a worker. A write to a
/// closed pipe, or beyond the allowed size of a file, fails and does not end the process.
class SignalGuard {
 public:
  /// In a worker a second signal has no effect, because the process that watches the worker gets the signal too.
  explicit SignalGuard(const Worker* worker) {
    signal_received = worker && worker->before.interrupted ? SIGTERM : 0;
    wait_for_readers(signal_received == 0);
    struct sigaction action{};
    action.sa_handler = [](int number) {
      signal_received = number;
      wait_for_readers(false);
    };
    action.sa_flags = static_cast<int>(SA_RESTART | (worker ? 0 : SA_RESETHAND));
    sigaction(SIGINT, &action, &old_interrupt_);
    sigaction(SIGTERM, &action, &old_terminate_);
    struct sigaction ignored{};
    ignored.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignored, &old_pipe_);
    sigaction(SIGXFSZ, &ignored, &old_size_);
  }
  ~SignalGuard() {
    sigaction(SIGINT, &old_interrupt_, nullptr);
    sigaction(SIGTERM, &old_terminate_, nullptr);
    sigaction(SIGPIPE, &old_pipe_, nullptr);
    sigaction(SIGXFSZ, &old_size_, nullptr);
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  struct sigaction old_interrupt_{}, old_terminate_{}, old_pipe_{}, old_size_{};
};

std::string words_of(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) ? "the host has no memory left" : first_line(error.what());
}

}  // namespace

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

Experiment::Experiment(const ExperimentSpec& spec, Options options)
    : state_(std::make_unique<State>(*this, spec, std::move(options))) {}
Experiment::~Experiment() = default;

Device& Experiment::device() { return *state_->device; }
PipelineCache& Experiment::pipelines() { return *state_->pipelines; }
uint64_t Experiment::seed() const { return state_->options.seed; }
bool Experiment::is_part() const { return !state_->part.is_null(); }
const std::string& Experiment::input() const { return state_->options.input; }
std::string Experiment::file(const std::string& option) const { return file_of(state_->options.files, option); }
const Files& Experiment::files() const { return state_->options.files; }
std::vector<std::vector<Case>> Experiment::groups() { return state_->groups; }
const std::vector<Measurement>& Experiment::results() const { return state_->results; }
const std::vector<Comparison>& Experiment::comparisons() const { return state_->comparisons; }

void Experiment::compile(const std::function<void()>& step) {
  std::optional<CompilationLimit> limit;
  if (state_->options.worker) limit.emplace(state_->options.worker->activity);
  step();
}

std::vector<Case> Experiment::unmeasured(const std::vector<Case>& cases) {
  std::vector<Case> missing;
  std::ranges::copy_if(cases, std::back_inserter(missing), [&](const Case& config) {
    return std::ranges::find(state_->results, config, &Measurement::config) == state_->results.end() &&
           !state_->takes_over(config);
  });
  return missing;
}

std::vector<Trial> Experiment::verify(const std::vector<Case>& cases) {
  if (interrupted()) throw Interrupted{};
  state_->note_cases(cases);
  state_->compile_ahead(cases);
  std::vector<Trial> trials;
  for (const Case& config : cases) {
    if (interrupted()) throw Interrupted{};
    state_->at_case(static_cast<int>(&config - cases.data()));
    state_->progress.begin(state_->label(config));
    if (auto trial = state_->verify(config)) trials.push_back(std::move(*trial));
  }
  return trials;
}

void Experiment::measure(std::vector<Trial> trials) { measure(std::move(trials), 1); }

void Experiment::measure(std::vector<Trial> trials, double share) {
  if (interrupted()) throw Interrupted{};
  if (state_->options.only_verify) {
    for (Trial& trial : trials) state_->store(std::move(trial.record));
  } else {
    state_->measure(std::move(trials), share * state_->budget_left());
  }
  state_->at_case(-1);
  if (interrupted()) throw Interrupted{};
}

void Experiment::compare(const std::vector<Duel>& duels) {
  if (!state_->options.only_verify) state_->measure_in_processes(duels);
}

void Experiment::compare(const std::vector<Duel>& duels, double share) {
  if (!state_->options.only_verify) state_->compare_each(duels, share * state_->budget_left());
}

bool Experiment::wants(const std::string& hypothesis) const {
  if (state_->options.only_verify || state_->replays_measurement()) return false;
  return !state_->replays_finding() || state_->replayed.at("data").at("hypothesis").at("id") == hypothesis;
}

int Experiment::run() {
  for (const auto& cases : groups()) measure(verify(cases));
  return compare_and_conclude();
}

int Experiment::compare_and_conclude() {
  compare(in_turn(state_->claims, duels(state_->claims, results())));
  return conclude(attn::conclude(state_->claims, results(), comparisons(), state_->processes));
}

int Experiment::conclude(const std::vector<Conclusion>& conclusions) {
  if (interrupted()) throw Interrupted{};
  state_->at_case(-1);
  return state_->conclude(conclusions);
}

int run_part_process(const std::vector<std::string>& arguments, const std::function<bool()>& hangs) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::fflush(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  pid_t process = 0;
  const int error = posix_spawn(&process, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error(fmt::format("no process can be started: {}", strerror(error)));
  int status = 0;
  bool told = false;
  while (waitpid(process, &status, WNOHANG) == 0) {
    if (interrupted() && !told) told = kill(process, SIGTERM) == 0;
    if (hangs()) kill(process, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return WIFSIGNALED(status) ? signalled + WTERMSIG(status) : WEXITSTATUS(status);
}

int run_experiment(int argc, const char* const* argv, const ExperimentSpec& spec,
                   const std::function<int(Experiment&)>& body, const DeviceOpener& open_device,
                   const Restarter& restart, const PartRunner& run_part) {
  const auto complain = [&](const std::string& message, int status) {
    to_stderr(fmt::format("{}: {}\n", spec.name, message));
    return status;
  };
  std::string records;  // the end of a message
  bool users_code = false;
  const auto run = [&](const std::vector<std::string>& arguments, const Restarter& go_on, const Worker* worker) {
    const SignalGuard guard(worker);
    // spdlog's default logger writes to stdout, which is for results only.
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::stderr_color_sink_mt>()));
    try {
      std::vector<const char*> texts;
      for (const std::string& argument : arguments) texts.push_back(argument.c_str());
      std::optional<Options> options;
      try {
        options = parse_options(static_cast<int>(texts.size()), texts.data(), spec);
      } catch (const BadInput& error) {
        throw BadInput(printable(error.what()));  // a word of the command line may have control characters
      }
      if (!options) return 0;
      if (!options->part.empty())
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // ends this process when the run that started it ends
      options->open_device = open_device;
      options->worker = worker;
      if (interrupted()) options->quiet = true;
      Experiment lab(spec, *options);
      Experiment::State& state = *lab.state_;
      if (options->list) {
        to_stdout(options->json ? claims_json(spec.name, state.claims)
                                : list(spec, *options, state.groups, state.hypotheses));
        return 0;
      }
      if (options->dry_run) {
        to_stdout(dry_run(spec, *options, state.groups, lab.device().info(),
                          [&](const Case& config) -> const Plan& { return state.plan(config); }));
        return 0;
      }
      if (const DeviceInfo& info = lab.device().info(); info.has("untimed") && !options->only_verify) {
        throw BadInput(fmt::format("{} takes no times; --only verify checks its results", info.spec));
      }
      state.run_part_process = run_part;
      state.open_records();
      users_code = state.device->info().on_host && has_files(options->files);
      records = fmt::format("; the records are in {} and {}", options->measurements_path, options->findings_path);
      try {
        if (interrupted()) throw Interrupted{};
        if (!state.part.is_null()) return state.run_part();
        return state.replays_measurement() ? state.replay_measurement() : body(lab);
      } catch (const Interrupted&) {
        state.progress.clear();
        if (!state.part.is_null()) return 130;
        if (!options->json && !state.results.empty()) to_stdout(state.table_text() + "\n");
        return complain(fmt::format("interrupted; {}; go on with: {}", state.kept(), shell_command(state.resuming())),
                        130);
      } catch (const Restart&) {
        if (!state.part.is_null()) return 1;
        const bool goes_on = options->replay.empty() && state.can_go_on();
        state.progress.note(state.results.back().reason + (goes_on ? "; the run goes on in a new process" : ""));
        if (goes_on) {
          go_on(state.resuming());
        } else if (!options->json) {
          to_stdout(state.table_text() + "\n");
        }
        return complain(fmt::format("the device is lost; {}", state.kept()), 1);
      } catch (const BadInput&) {
        throw;
      } catch (const DeviceMissing&) {
        throw;
      } catch (const std::exception& error) {
        const bool in_case = worker && (worker->activity.at() >= 0 || users_code);
        if (in_case || state.results.empty() || !state.part.is_null()) throw;
        state.progress.clear();
        if (!options->json) to_stdout(state.table_text() + "\n");
        return complain(fmt::format("{}; {}", words_of(error), state.kept()), 1);
      }
    } catch (const BadInput& error) {
      return complain(error.what(), 2);
    } catch (const DeviceMissing& error) {
      return complain(first_line(error.what()), 3);
    } catch (const std::exception& error) {
      // The error may come from a user's function that overwrote data of this process.
      if (worker && (worker->activity.at() >= 0 || users_code)) {
        worker->activity.end_case("failed", words_of(error));
      }
      return complain(words_of(error), 1);
    }
  };
  const auto run_and_flush = [&](const std::vector<std::string>& arguments, const Restarter& go_on,
                                 const Worker* worker) {
    const int status = run(arguments, go_on, worker);
    to_stdout("");
    return stdout_lost() ? complain("stdout cannot be written" + records, std::max(status, 1)) : status;
  };
  const std::vector<std::string> arguments(argv, argv + argc);
  if (restart) return run_and_flush(arguments, restart, nullptr);
  keep_standard_streams();
  const auto another_process = [](const std::vector<std::string>&) {};
  if (std::ranges::count(arguments, "--part") > 0) return run_and_flush(arguments, another_process, nullptr);
  return watch(spec.name, arguments, [&](const std::vector<std::string>& given, const Worker& worker) {
    return run_and_flush(given, [&](const std::vector<std::string>&) { worker.activity.go_on_in_another(); }, &worker);
  });
}

}  // namespace attn
