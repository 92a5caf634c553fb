#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "common/base/error.h"
#include "common/base/host_memory.h"
#include "common/base/parallel.h"
#include "common/base/text_table.h"
#include "common/experiment/run.h"

namespace attn {
namespace {

constexpr int most_log_lines = 100;  // the most lines of a compiler's message in a record

std::string first_lines(const std::string& text, int count) {
  size_t end = 0;
  while (count-- > 0 && end != text.npos) end = text.find('\n', end + 1);
  return end == text.npos ? text : text.substr(0, end) + "\n...";
}

/// The reason why the tensors and the oracle of a plan do not fit in the memory that is free; nothing if they fit.
std::optional<std::string> too_large(const CasePlan& plan, const Device& device) {
  Memory needed = plan.memory;
  if (needed.device == 0 && needed.host == 0) needed = {plan.work.bytes, plan.work.bytes};
  const auto lacks = [](double bytes, double available, const char* where) {
    return fmt::format("the case needs {:.1f} GB of the {}'s memory, which has {:.1f} GB free", 1e-9 * bytes, where,
                       1e-9 * available);
  };
  if (device.info().on_host) needed = {0, needed.device + needed.host};
  // The cases of a group share tensors. So the case can also use the device memory that this process has allocated.
  const double on_device = device.available_bytes() + static_cast<double>(device.buffer_bytes());
  if (needed.device > on_device) return lacks(needed.device, on_device, "device");
  const double available = available_host_bytes();
  return needed.host > available ? std::optional(lacks(needed.host, available, "host")) : std::nullopt;
}

}  // namespace

void Runner::guarded(Measurement& record, const std::function<void()>& step) {
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
    if (compiler_messages_.insert(std::string(error.log())).second) tell("note", record.log);
  } catch (const OutOfMemory& error) {
    fail(record, "oom", fmt::format("{} bytes: {}", error.needed_bytes, first_line(error.what())));
  } catch (const std::bad_alloc&) {
    fail(record, "oom", "the host has no room for the tensors");
  } catch (const DeviceLost& error) {
    const std::string status = dynamic_cast<const DeviceTimeout*>(&error) ? "timeout" : "failed";
    if (device_.info().on_host) {
      port_->send({{"lost", status}, {"reason", first_line(error.what())}});
      throw Lost{};
    }
    fail(record, status, device_lost + first_line(error.what()));
  } catch (const std::exception& error) {
    fail(record, "failed", first_line(error.what()));
  }
}

std::optional<std::string> Runner::unless_asked_for(const std::optional<std::string>& reason) {
  if (!reason || !task_.asked_for) return reason;
  tell("note", fmt::format("{}: {}; the case runs all the same, because it is the only one", spec_.name, *reason));
  return {};
}

Trial Runner::new_trial(const Case& config, int number) {
  Trial trial{.config = config,
              .plan = plans_(config),
              .record = blank(spec_, device_.info(), task_.run, config),
              .number = number};
  trial.record.work = trial.plan.work;
  trial.record.dtype = trial.plan.work.dtype;
  return trial;
}

void Runner::compile_ahead(const std::vector<Case>& cases) {
  port_->activity.at(-1);
  if (!task_.compile_ahead || (!options_.only_verify && groups_left_s() <= 0)) return;
  std::vector<KernelSource> sources;
  for (const Case& config : cases) {
    const CasePlan& todo = plans_(config);
    if (todo.host || skip_reason(todo, device_.info()) || too_large(todo, device_)) continue;
    if (!todo.work_is_limit && rates_.too_long(todo.work)) continue;
    for (const Launch& launch : todo.launches) sources.push_back(launch.source);
  }
  if (sources.empty()) return;
  tell("begin",
       fmt::format("compiling for {}, from {}", counted(cases.size(), "case"), label(cases.front(), label_axes_)));
  parallel_for(static_cast<int64_t>(sources.size()), 1, [&](int64_t i, int64_t) {
    try {
      pipeline(sources[static_cast<size_t>(i)]);
    } catch (const std::exception&) {
    }
  });
}

std::optional<Trial> Runner::verify(const Case& config, int number) {
  port_->activity.at(number);
  tell("begin", label(config, label_axes_));
  Trial trial = new_trial(config, number);
  const bool dumps = !options_.dump_output.empty();
  std::optional<std::string> reason = skip_reason(trial.plan, device_.info());
  if (!reason && !options_.only_verify && groups_left_s() <= 0) {
    store(skipped(std::move(trial.record), budget_spent));
    return std::nullopt;
  }
  if (trial.plan.host && dumps) throw BadInput("--dump-output: a case that launches nothing has no output");
  if (!reason) reason = too_large(trial.plan, device_);
  if (!reason && !trial.plan.work_is_limit) reason = unless_asked_for(rates_.too_long(trial.plan.work));
  if (reason) {
    if (dumps) throw BadInput("--dump-output: the case cannot run here: " + *reason);
    store(skipped(std::move(trial.record), *reason));
    return std::nullopt;
  }
  guarded(trial.record, [&] {
    make(trial, makers_.problem);
    if (trial.plan.work_is_limit) reason = unless_asked_for(rates_.too_long(trial.plan.work));
    if (reason) return fail(trial.record, "skipped", *reason);
    launch_and_check(trial);
    if (dumps) trial.problem->dump(options_.dump_output);
    launch_again(trial);  // after the dump: a launch in place changes its result once more
  });
  if (trial.ok()) return trial;
  store(std::move(trial.record));
  return std::nullopt;
}

void Runner::make(Trial& trial, const Make& make_problem) {
  // The record gets its kernels before the problem is made. Making a problem may launch kernels and lose the device.
  // Then --resume recognises the case by the kernels of its record. A host problem is made before the kernels are
  // compiled, because its case may be about compiling them.
  if (trial.plan.host) trial.host = makers_.host(trial.config, trial.plan);
  const std::vector<Launch>& launches = trial.plan.launches;
  if (!launches.empty()) trial.record.pipeline = pipeline_json(launches.front());
  if (launches.size() > 1) {
    for (const Launch& launch : launches) {
      trial.record.phases.push_back({.name = launch.phase, .pipeline = pipeline_json(launch)});
    }
  }
  if (trial.plan.host) return;
  trial.problem = make_problem(trial.config, trial.plan);
  port_->activity.progress();
  trial.record.values = trial.problem->values();
  if (const auto work = trial.problem->work()) trial.plan.work = *work;
  trial.record.work = trial.plan.work;
}

void Runner::launch_and_check(Trial& trial) {
  if (trial.host) {
    trial.launch_s = trial.host->sample();
  } else {
    trial.problem->poison();
    trial.launch_s = device_.submit(encode_launches(*trial.problem, 1)).at(0);
  }
  port_->activity.progress();
  trial.record.check = trial.host ? trial.host->check() : trial.problem->check();
  if (!trial.record.check->ok) fail(trial.record, "wrong", trial.record.check->worst);
}

void Runner::launch_again(Trial& trial) {
  constexpr int most_launches = 3;
  if (trial.host || options_.only_verify) return;
  const double too_slow_s = most_slowed * options_.max_launch_s;
  for (int i = 1; i < most_launches && trial.launch_s > options_.max_launch_s && trial.launch_s <= too_slow_s; ++i) {
    trial.launch_s = std::min(trial.launch_s, device_.submit(encode_launches(*trial.problem, 1)).at(0));
    port_->activity.progress();
  }
}

void Runner::check_again(Trial& trial) {
  if (!trial.host) return launch_and_check(trial);
  trial.record.check = trial.host->check();
  if (!trial.record.check->ok) fail(trial.record, "wrong", trial.record.check->worst);
}

const Pipeline& Runner::pipeline(const KernelSource& source) {
  std::optional<CompilationLimit> limit;
  if (port_->may_exit && source.guarded) limit.emplace(*port_);
  const Pipeline& made = pipelines_.get(source);
  port_->activity.progress();
  return made;
}

Json Runner::pipeline_json(const Launch& launch) {
  const Pipeline& made = pipeline(launch.source);
  const Binary& binary = made.binary;
  const auto [known, added] = code_contents_.try_emplace(binary.code_sha256);
  if (added) known->second = device_.contents(binary);
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
          {"compile_s", device_.info().has("untimed") ? Json(nullptr) : Json(binary.times.total_s())},
          {"cache", made.origin}};
}

void Runner::send(Json result) {
  result["seconds"] = spent_s() - std::exchange(sent_s_, spent_s());
  port_->send(result);
}

void Runner::store(Measurement record, int launches_per_sample, const Json& samples) {
  Json json = rates_.record_json(
      record, [&](const std::string& reason) { tell("note", label(record.config, label_axes_) + ": " + reason); });
  for (Json& timing : json["time"]) {
    timing["launches_per_sample"] = timing["scope"] == name(Scope::device_cold) ? 1 : launches_per_sample;
  }
  if (record.main_timing()) {
    json["busy"] = disturbance(device_.info(), record, started_.cores, others(started_, core_times()));
  }
  send({{"measurement", json}, {"samples", samples}});
  if (cases_left_ > 0) --cases_left_;
  if (device_.lost()) throw Lost{};
}

}  // namespace attn
