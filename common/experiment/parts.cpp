// Measures comparisons, and the cases that claims are judged by, in processes of their own. A process has an address
// space, memory and a warm-up of its own. So the spread between processes shows how far the next run may differ.
#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>

#include "common/base/temporary_folder.h"
#include "common/experiment/state.h"

namespace attn {
namespace {

Json json_of(const std::vector<Duel>& duels) {
  Json list = Json::array();
  for (const Duel& duel : duels) {
    list.push_back(
        {{"hypothesis", duel.hypothesis}, {"baseline", duel.baseline.json()}, {"contender", duel.contender.json()}});
  }
  return list;
}

Json json_of(const std::vector<std::vector<Case>>& groups) {
  Json list = Json::array();
  for (const std::vector<Case>& cases : groups) {
    Json& group = list.emplace_back(Json::array());
    for (const Case& config : cases) group.push_back(config.json());
  }
  return list;
}

/// What one process measured.
struct PartResults {
  int number = 0;  // of the process
  std::vector<Measurement> measurements;
  std::map<size_t, PairSamples> pairs;  // by the number of the duel
  std::map<size_t, Json> clocks;
};

}  // namespace

void Experiment::State::measure_in_processes(const std::vector<Duel>& asked) {
  std::vector<Duel> duels = replays_finding() ? replayed_duels() : asked;
  for (const Comparison& comparison : comparisons) {
    duels.push_back({comparison.hypothesis, comparison.baseline, comparison.contender});
  }
  const int count = options.process_count(device->info());
  if (count == 1) return compare_each(duels, budget_left());

  std::vector<Duel> wanted;
  for (const Duel& pair : pairs_of(duels)) {
    const auto before = std::ranges::find_if(
        compared_before, [&](const Comparison& known) { return same_pair(known, pair) && !known.parts.empty(); });
    if (before == compared_before.end()) {
      wanted.push_back(pair);
    } else {
      keep_comparison(*before, duels);
    }
  }
  std::vector<std::vector<Case>> again = group(cases_of_claims(claims, results), spec.compared_axes);

  std::vector<PartResults> parts;
  for (int number = 1; number <= count && !(wanted.empty() && again.empty()); ++number) {
    if (budget_left() <= 0) break;
    progress.begin(fmt::format("process {} of {}", number, count));
    PartResults& part_of_run = parts.emplace_back();
    part_of_run.number = number;
    std::vector<Duel> left = wanted;
    std::vector<std::vector<Case>> groups_left = again;
    // A process that loses its device ends early. Another process goes on with the rest.
    while (!(left.empty() && groups_left.empty())) {
      const TemporaryFolder folder;
      const std::string task = folder.path() / "task.jsonl", found = folder.path() / "results.jsonl";
      RecordFile(task).append({{"part", number},
                               {"parts", count},
                               {"budget_s", budget_left() / (count - number + 1)},
                               {"duels", json_of(left)},
                               {"groups", json_of(groups_left)},
                               {"results", found}});
      std::vector<std::string> arguments = {options.arguments.empty() ? spec.name : options.arguments.front(),
                                            "--part",
                                            task,
                                            "--device",
                                            device->info().spec,
                                            "--profile",
                                            options.profile,
                                            "--seed",
                                            std::to_string(options.seed)};
      const auto add = [&](const std::string& option, const std::string& value) {
        if (!value.empty()) arguments.insert(arguments.end(), {option, value});
      };
      if (options.threadgroup_memory_bytes) {
        add("--threadgroup-memory", std::to_string(*options.threadgroup_memory_bytes));
      }
      add("--input", options.input);
      for (const auto& [option, path] : options.files) add(option, path);
      if (options.quiet) arguments.emplace_back("--quiet");

      progress.clear();
      const Stopwatch stopwatch;
      const int status = run_part_process(arguments);
      measured_s += stopwatch.seconds();
      if (interrupted()) throw Interrupted{};

      std::vector<std::string> problems;
      size_t progressed = 0;
      std::vector<bool> done(left.size());
      for (const Json& line : read_records(found, problems)) {
        ++progressed;
        if (line.contains("measurement")) {
          Measurement measurement = measurement_from_json(line["measurement"]);
          for (auto& cases : groups_left) std::erase(cases, measurement.config);
          if (measurement.status == "ok" || measurement.status == "skipped") {
            part_of_run.measurements.push_back(std::move(measurement));
          } else {
            store(std::move(measurement));
          }
        } else {
          const size_t duel = line.at("duel");
          done.at(duel) = true;
          if (!line.contains("samples")) continue;
          const auto place = static_cast<size_t>(
              std::ranges::find_if(wanted, [&](const Duel& pair) { return same_pair(pair, left[duel]); }) -
              wanted.begin());
          part_of_run.pairs.emplace(place, samples_from_json(line["samples"]));
          part_of_run.clocks.emplace(place, line.value("clocks", Json()));
        }
      }
      std::vector<Duel> rest;
      for (size_t i = 0; i < left.size(); ++i) {
        if (!done[i] && was_measured(left[i].baseline) && was_measured(left[i].contender)) rest.push_back(left[i]);
      }
      left = std::move(rest);
      std::erase_if(groups_left, [](const auto& cases) { return cases.empty(); });
      if (status == 0 || progressed == 0) {
        if (status != 0) progress.note(fmt::format("process {} of {} ended with status {}", number, count, status));
        break;
      }
    }
  }

  for (size_t place = 0; place < wanted.size(); ++place) {
    std::vector<Comparison> of_processes;
    std::vector<PairSamples> samples;
    for (PartResults& one : parts) {
      const auto found = one.pairs.find(place);
      if (found == one.pairs.end()) continue;
      samples.push_back(found->second);
      of_processes.push_back(compared(wanted[place].baseline, wanted[place].contender, found->second, options.seed));
      of_processes.back().clocks = one.clocks[place];
      of_processes.back().process = one.number;
    }
    if (of_processes.empty() || !was_measured(wanted[place].baseline) || !was_measured(wanted[place].contender))
      continue;
    const Comparison pooled = compared(of_processes, samples, processes.spreads[FigureKind::ratio], options.seed);
    keep_comparison(pooled, duels);
    if (!options.quiet)
      progress.note(fmt::format("{} against {}: {:.4f} [{:.4f}, {:.4f}], A/A floor {:.4f}", label(pooled.contender),
                                label(pooled.baseline), pooled.ratio.value, pooled.ratio.ci_lo, pooled.ratio.ci_hi,
                                pooled.aa_floor()));
  }
  for (PartResults& one : parts) {
    for (Measurement& measurement : one.measurements) {  // findings name the record that the sweep wrote
      const auto recorded = std::ranges::find(results, measurement.config, &Measurement::config);
      if (recorded != results.end()) measurement.id = recorded->id;
    }
    processes.results.push_back(std::move(one.measurements));
  }
}

int Experiment::State::run_part() {
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // a part does not outlive the run that asked for it
  // The budget of a part is the time of the whole process: the run that asked for it waits.
  const Stopwatch stopwatch;
  for (const std::vector<Case>& cases : groups) {
    measured_s = stopwatch.seconds();
    lab.measure(lab.verify(cases));
  }
  std::vector<Duel> duels;
  for (const Json& duel : part.at("duels")) {
    duels.push_back(
        {duel.at("hypothesis"), Case::from_json(duel.at("baseline")), Case::from_json(duel.at("contender"))});
  }
  progress.add(duels.size());
  for (size_t i = 0; i < duels.size(); ++i) {
    if (interrupted()) throw Interrupted{};
    Json line = {{"duel", i}};
    measured_s = stopwatch.seconds();
    if (budget_left() > 0) {
      const std::string pair = label(duels[i].contender) + " against " + label(duels[i].baseline);
      progress.begin(pair);
      if (const auto samples = sample_pair(duels[i], budget_left() / static_cast<double>(duels.size() - i))) {
        line["samples"] = to_json(*samples);
      }
      if (interrupted()) throw Interrupted{};
      progress.finish(pair);
    }
    part_file->append(line);
  }
  return 0;
}

}  // namespace attn
