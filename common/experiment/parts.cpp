// Measures comparisons, and the cases by which claims are judged, in separate processes. Each process has its own
// address space, memory and warm-up. So the spread between processes shows how far the next run may differ.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/base/temporary_folder.h"
#include "common/experiment/state.h"

namespace attn {
namespace {

Json to_json(const Duel& duel) {
  return {{"hypothesis", duel.hypothesis}, {"baseline", duel.baseline.json()}, {"contender", duel.contender.json()}};
}

Duel duel_from_json(const Json& json) {
  return {json.at("hypothesis"), Case::from_json(json.at("baseline")), Case::from_json(json.at("contender"))};
}

}  // namespace

/// What a process has to measure.
struct Experiment::State::Task {
  std::vector<Duel> duels;
  std::vector<std::vector<Case>> groups;  // the cases of a group take turns

  bool empty() const { return duels.empty() && groups.empty(); }
};

/// What a process measured.
struct Experiment::State::PartResults {
  int number = 0;  // the number of the process, from 1
  std::vector<Measurement> measurements;
  std::vector<std::pair<Duel, PairSamples>> pairs;
};

void Experiment::State::measure_in_processes(const std::vector<Duel>& asked) {
  std::vector<Duel> duels = replays_finding() ? replayed_duels() : asked;
  for (const Comparison& comparison : comparisons) {
    duels.push_back({comparison.hypothesis, comparison.baseline, comparison.contender});
  }
  const int count = options.process_count(device->info());
  if (count == 1) {
    compare_each(duels, budget_left());
    return note_if_complete();
  }

  Task task{{}, group(cases_to_repeat(), spec.compared_axes)};
  for (const Duel& pair : pairs_of(duels)) {
    const auto before = std::ranges::find_if(
        compared_before, [&](const Comparison& known) { return same_pair(known, pair) && !known.parts.empty(); });
    if (before != compared_before.end()) {
      keep_comparison(*before, duels);
    } else if (!is_judged(pair, duels)) {
      task.duels.push_back(pair);
    }
  }
  if (task.empty()) note_if_complete();
  std::vector<PartResults> parts;
  for (int number = 1; number <= count && !task.empty() && budget_left() > 0; ++number) {
    parts.push_back(measure_in_process(number, count, task));
  }
  pool_pairs(parts, task.duels, duels);
  for (PartResults& part_of_run : parts) {
    // A part's measurement gets the id of the sweep's record of the same case, because findings name this record.
    for (Measurement& measurement : part_of_run.measurements) {
      const auto recorded = std::ranges::find(results, measurement.config, &Measurement::config);
      if (recorded != results.end()) measurement.id = recorded->id;
    }
    processes.results.push_back(std::move(part_of_run.measurements));
  }
}

Experiment::State::PartResults Experiment::State::measure_in_process(int number, int count, Task left) {
  progress.begin(fmt::format("process {} of {}", number, count));
  PartResults found{.number = number, .measurements = {}, .pairs = {}};
  // A process may end early, for example because it loses its device. If the process left any result, another
  // process measures the rest.
  while (!left.empty()) try {
      const TemporaryFolder folder;
      const std::string task_path = folder.path() / "task.jsonl", results_path = folder.path() / "results.jsonl",
                        activity_path = folder.path() / "activity";
      Json groups_json = Json::array(), duels_json = Json::array();
      for (const std::vector<Case>& cases : left.groups) {
        Json& group_json = groups_json.emplace_back(Json::array());
        for (const Case& config : cases) group_json.push_back(config.json());
      }
      for (const Duel& duel : left.duels) duels_json.push_back(to_json(duel));
      RecordFile(task_path).append({{"part", number},
                                    {"parts", count},
                                    {"budget_s", budget_left() / (count - number + 1)},
                                    {"duels", duels_json},
                                    {"groups", groups_json},
                                    {"results", results_path},
                                    {"activity", activity_path}});
      progress.clear();
      const Stopwatch stopwatch;
      const Activity of_part(activity_path);
      Silence silence;
      bool hung = false;
      const int status = run_part_process(part_arguments(task_path), [&] {
        progressed();
        return hung = hung || silence.seconds(of_part.progresses()) > most_silent_s();
      });
      measured_s += stopwatch.seconds();
      if (interrupted()) throw Interrupted{};
      const bool progressed = take_results(results_path, left, found);
      if (status == 0) break;
      part_failed = true;
      const std::string ended = hung                 ? without_progress(most_silent_s())
                                : status > signalled ? ended_by_signal(status - signalled)
                                                     : fmt::format("ended with status {}", status);
      progress.note(fmt::format("{}: process {} of {} that repeat measurements {}{}", spec.name, number, count, ended,
                                progressed && !left.empty() ? "; another process goes on" : ""));
      if (!progressed) break;
    } catch (const std::exception& error) {
      // For example, the task's file cannot be written, the process cannot be started, or the results cannot be read.
      part_failed = true;
      progress.note(
          fmt::format("{}: process {} of {} that repeat measurements: {}", spec.name, number, count, error.what()));
      break;
    }
  return found;
}

std::vector<std::string> Experiment::State::part_arguments(const std::string& task_path) const {
  std::vector<std::string> arguments = {options.arguments.empty() ? spec.name : options.arguments.front(),
                                        "--part",
                                        task_path,
                                        "--device",
                                        device->info().spec,
                                        "--profile",
                                        options.profile,
                                        "--seed",
                                        std::to_string(options.seed),
                                        "--max-launch",
                                        fmt::format("{}", options.max_launch_s),
                                        "--samples",
                                        std::to_string(options.samples)};
  const auto add = [&](const std::string& option, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {option, value});
  };
  if (options.threadgroup_memory_bytes) {
    add("--threadgroup-memory", std::to_string(*options.threadgroup_memory_bytes));
  }
  add("--input", options.input);
  for (const auto& [option, path] : options.files) add(option, path);
  if (options.quiet) arguments.emplace_back("--quiet");
  return arguments;
}

bool Experiment::State::take_results(const std::string& path, Task& left, PartResults& found) {
  std::vector<std::string> problems;
  const std::vector<Json> lines = read_records(path, problems);
  for (const Json& line : lines) {
    if (line.contains("measurement")) {
      Measurement measurement = measurement_from_json(line["measurement"]);
      for (auto& cases : left.groups) std::erase(cases, measurement.config);
      if (measurement.status == "ok" || measurement.status == "skipped") {
        if (line.contains("samples"))
          keep_samples(found.number, {{"case", measurement.config.json()}}, line["samples"]);
        found.measurements.push_back(std::move(measurement));
      } else {
        store(std::move(measurement));
      }
    } else {
      const Duel duel = duel_from_json(line.at("duel"));
      std::erase_if(left.duels, [&](const Duel& other) { return same_pair(duel, other); });
      if (!line.contains("samples")) continue;
      keep_samples(found.number, {{"baseline", duel.baseline.json()}, {"contender", duel.contender.json()}},
                   line["samples"]);
      found.pairs.emplace_back(duel, samples_from_json(line["samples"]));
    }
  }
  std::erase_if(left.groups, [](const auto& cases) { return cases.empty(); });
  std::erase_if(left.duels,
                [&](const Duel& duel) { return !was_measured(duel.baseline) || !was_measured(duel.contender); });
  return !lines.empty();
}

void Experiment::State::pool_pairs(const std::vector<PartResults>& parts, const std::vector<Duel>& pairs,
                                   const std::vector<Duel>& asked) {
  for (const Duel& pair : pairs) {
    std::vector<Comparison> of_processes;
    std::vector<PairSamples> samples;
    for (const PartResults& part_of_run : parts) {
      const auto measured =
          std::ranges::find_if(part_of_run.pairs, [&](const auto& other) { return same_pair(other.first, pair); });
      if (measured == part_of_run.pairs.end()) continue;
      samples.push_back(measured->second);
      of_processes.push_back(compared(pair.baseline, pair.contender, samples.back(), options.seed));
      of_processes.back().process = part_of_run.number;
    }
    if (of_processes.empty() || !was_measured(pair.baseline) || !was_measured(pair.contender)) continue;
    const Comparison pooled = compared(of_processes, samples, processes.spreads[FigureKind::ratio], options.seed);
    keep_comparison(pooled, asked);
    if (!options.quiet) progress.note(describe(pooled));
  }
}

int Experiment::State::run_part() {
  // A part's budget covers all of its time, not only the time of measuring, because the run that started the part waits
  // until the part ends.
  const Stopwatch stopwatch;
  for (const std::vector<Case>& cases : groups) {
    measured_s = stopwatch.seconds();
    lab.measure(lab.verify(cases));
  }
  const Json& duels = part.at("duels");
  progress.add(duels.size());
  size_t left = duels.size();
  for (const Json& json : duels) {
    if (interrupted()) throw Interrupted{};
    const Duel duel = duel_from_json(json);
    Json line = {{"duel", json}};
    measured_s = stopwatch.seconds();
    if (budget_left() > 0) {
      const std::string pair = label(duel.contender) + " against " + label(duel.baseline);
      progress.begin(pair);
      if (const auto samples = sample_pair(duel, budget_left() / static_cast<double>(left))) {
        line["samples"] = to_json(*samples);
      }
      if (interrupted()) throw Interrupted{};
      progress.finish(pair);
    }
    keep([&] { part_file->append(line); });
    --left;
  }
  return unwritten ? 1 : 0;
}

}  // namespace attn
