#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "common/base/error.h"
#include "common/base/parallel.h"
#include "common/base/text_table.h"
#include "common/experiment/sampling.h"
#include "common/experiment/state.h"

namespace attn {
namespace {

constexpr int most_log_lines = 100;  // the most lines of a compiler's message in a record

std::string first_lines(const std::string& text, int count) {
  size_t end = 0;
  while (count-- > 0 && end != text.npos) end = text.find('\n', end + 1);
  return end == text.npos ? text : text.substr(0, end) + "\n...";
}

}  // namespace

void Experiment::State::guarded(Measurement& record, const std::function<void()>& step) {
  try {
    step();
  } catch (const BadInput&) {
    throw;
  } catch (const DeviceMissing&) {
    throw;
  } catch (const CompileError& error) {
    fail(record, "failed", first_line(error.what()));
    record.log = first_lines(error.what(), most_log_lines);
    // error.what() has the kernel's key, error.log() has not. Kernels that fail for one reason usually have equal logs.
    // Each log is shown once.
    if (compiler_messages.insert(std::string(error.log())).second) progress.note(record.log);
  } catch (const OutOfMemory& error) {
    fail(record, "oom", fmt::format("{} bytes: {}", error.needed_bytes, first_line(error.what())));
  } catch (const std::bad_alloc&) {
    fail(record, "oom", "the host has no room for the tensors");
  } catch (const DeviceLost& error) {
    fail_lost(record, error);
  } catch (const std::exception& error) {
    fail(record, "failed", first_line(error.what()));
  }
}

Trial Experiment::State::new_trial(const Case& config) {
  Trial trial{.config = config, .plan = plan(config), .record = blank(config)};
  trial.record.work = trial.plan.work;
  trial.record.dtype = trial.plan.work.dtype;
  return trial;
}

void Experiment::State::compile_ahead(const std::vector<Case>& cases) {
  if (!options.only_verify && sweep_budget() <= 0) return;
  if (options.worker && !options.worker->before.compile_ahead) return;
  std::vector<KernelSource> sources;
  for (const Case& config : cases) {
    const CasePlan& todo = plan(config);
    if (todo.host || skip_reason(todo, device->info()) || foreseen(todo)) continue;
    for (const Launch& launch : todo.launches) sources.push_back(launch.source);
  }
  if (sources.empty()) return;
  progress.begin(fmt::format("compiling for {}, from {}", counted(cases.size(), "case"), label(cases.front())));
  parallel_for(static_cast<int64_t>(sources.size()), 1, [&](int64_t i, int64_t) {
    try {
      pipeline(sources[static_cast<size_t>(i)]);
    } catch (const std::exception&) {
    }
  });
}

std::optional<Trial> Experiment::State::verify(const Case& config) {
  Trial trial = new_trial(config);
  if (const auto reason = skip_reason(trial.plan, device->info())) {
    if (!options.dump_output.empty()) throw BadInput("--dump-output: the case cannot run here: " + *reason);
    store_skipped(std::move(trial.record), *reason);
    return std::nullopt;
  }
  if (!options.only_verify && sweep_budget() <= 0) {
    store_skipped(std::move(trial.record), budget_spent);
    return std::nullopt;
  }
  if (trial.plan.host && !options.dump_output.empty()) {
    throw BadInput("--dump-output: a case that launches nothing has no output");
  }
  std::optional<std::string> reason = too_large(trial.plan);
  if (!reason && !trial.plan.work_is_limit) reason = unless_asked_for(too_long(trial.plan.work));
  if (reason) {
    if (!options.dump_output.empty()) throw BadInput("--dump-output: the case cannot run here: " + *reason);
    store_skipped(std::move(trial.record), *reason);
    return std::nullopt;
  }
  guarded(trial.record, [&] {
    make(trial);
    if (const auto counted = trial.plan.work_is_limit ? unless_asked_for(too_long(trial.plan.work)) : std::nullopt) {
      return fail(trial.record, "skipped", *counted);
    }
    launch_and_check(trial);
    if (!options.dump_output.empty()) trial.problem->dump(options.dump_output);
    launch_again(trial);  // after the dump: a launch in place changes its result once more
  });
  if (trial.record.status == "ok") return trial;
  store(std::move(trial.record));
  return std::nullopt;
}

void Experiment::State::make(Trial& trial, const decltype(ExperimentSpec::make)& make_problem) {
  // The record gets its kernels before the problem is made. Making a problem may launch kernels and lose the device.
  // Then --resume recognises the case by the kernels of its record. A host problem is made before the kernels are
  // compiled, because its case may be about compiling them.
  if (trial.plan.host) trial.host = spec.make_host(lab, trial.config, trial.plan);
  const std::vector<Launch>& launches = trial.plan.launches;
  if (!launches.empty()) trial.record.pipeline = pipeline_json(launches.front());
  if (launches.size() > 1) {
    for (const Launch& launch : launches) {
      trial.record.phases.push_back({.name = launch.phase, .pipeline = pipeline_json(launch)});
    }
  }
  if (trial.plan.host) return;
  trial.problem = make_problem(lab, trial.config, trial.plan);
  progressed();
  trial.record.values = trial.problem->values();
  if (const auto work = trial.problem->work()) trial.plan.work = *work;
  trial.record.work = trial.plan.work;
}

void Experiment::State::launch_and_check(Trial& trial) {
  if (trial.host) {
    trial.launch_s = trial.host->sample();
  } else {
    trial.problem->poison();
    trial.launch_s = device->submit(encode_launches(*trial.problem, 1)).at(0);
  }
  progressed();
  trial.record.check = trial.host ? trial.host->check() : trial.problem->check();
  if (!trial.record.check->ok) fail(trial.record, "wrong", trial.record.check->worst);
}

void Experiment::State::launch_again(Trial& trial) {
  constexpr int most_launches = 3;
  if (trial.host || options.only_verify) return;
  const double too_slow_s = most_slowed * options.max_launch_s;
  for (int i = 1; i < most_launches && trial.launch_s > options.max_launch_s && trial.launch_s <= too_slow_s; ++i) {
    trial.launch_s = std::min(trial.launch_s, device->submit(encode_launches(*trial.problem, 1)).at(0));
    progressed();
  }
}

void Experiment::State::check_again(Trial& trial) {
  if (!trial.host) return launch_and_check(trial);
  trial.record.check = trial.host->check();
  if (!trial.record.check->ok) fail(trial.record, "wrong", trial.record.check->worst);
}

const Pipeline& Experiment::State::pipeline(const KernelSource& source) {
  std::optional<CompilationLimit> limit;
  if (options.worker && source.guarded) limit.emplace(options.worker->activity);
  const Pipeline& made = pipelines->get(source);
  progressed();
  return made;
}

Json Experiment::State::pipeline_json(const Launch& launch) {
  const Pipeline& made = pipeline(launch.source);
  const Binary& binary = made.binary;
  const auto [known, added] = code_contents.try_emplace(binary.code_sha256);
  if (added) known->second = device->contents(binary);
  const auto& [instructions, classes, loop, code_bytes] = known->second;
  Json hooks = Json::array();
  for (const SourceFile& hook : hooks_of(launch.source)) hooks.push_back({{"file", hook.path}, {"text", hook.text}});
  return {{"key", binary.key},
          {"hooks", hooks},
          {"source_sha256", binary.source_sha256},
          {"code_sha256", binary.code_sha256},
          {"registers", binary.registers >= 0 ? Json(binary.registers) : Json(nullptr)},
          {"spill_bytes", binary.spill_bytes >= 0 ? Json(binary.spill_bytes) : Json(nullptr)},
          {"threadgroup_bytes", launch.threadgroup_bytes + static_cast<size_t>(binary.threadgroup_bytes)},
          {"instructions", instructions.empty() ? Json(nullptr) : Json(instructions)},
          {"classes", classes.empty() ? Json(nullptr) : Json(classes)},
          {"loop", loop.empty() ? Json(nullptr) : Json(loop)},
          {"code_bytes", code_bytes >= 0 ? Json(code_bytes) : Json(nullptr)},
          {"compile_s", device->info().has("untimed") ? Json(nullptr) : Json(binary.times.total_s())},
          {"cache", made.origin}};
}

}  // namespace attn
