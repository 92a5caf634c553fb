// The command line that all experiments share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/setting.h"
#include "common/experiment/sweep_span.h"
#include "common/records/case.h"
#include "common/records/timing.h"

namespace attn {

struct ExperimentSpec;

using DeviceOpener = std::function<std::unique_ptr<Device>(std::string_view spec)>;

/// The fewest digits of a record's id that --replay takes.
inline constexpr size_t min_replay_digits = 6;

struct Options {
  std::vector<std::string> arguments;  // argv
  std::string device = "cpu";
  std::string profile = "quick";  // or "full", or "study" (ExperimentSpec::study_sweep)
  std::vector<Axis> axes;         // the axes that --axis gives
  bool list = false, dry_run = false, only_verify = false, resume = false, json = false, quiet = false;
  bool all_columns = false, csv = false, verdicts = false;  // what a run prints
  std::string filter;                                       // words that the cases of the table have
  std::optional<Axis> baseline;                             // one value of one axis
  std::optional<double> budget_s;
  int samples = TimingPolicy{}.max_samples;  // the most samples of a case, in the sweep and in each comparison
  double max_launch_s = 0.5;                 // longer launches may trip a display's watchdog, and hide clock changes
  uint64_t seed = 1;
  std::string input, dump_output;
  Files files;  // the paths of the experiment's own file options
  std::string findings_path = "findings.jsonl", measurements_path = "measurements.jsonl";
  int shard_index = 1, shard_count = 1;
  std::optional<size_t> threadgroup_memory_bytes;
  std::string replay;  // id of a record, or the first digits of an id
  int processes = 0;   // number of processes that measure comparisons and claims' figures; 0: the default
  bool task = false;   // this process carries out tasks of another one (task.h)

  /// Seconds to measure for: --budget, or the profile's default. The full profile takes minutes on a GPU and an hour on
  /// a cpu.
  double budget(const DeviceInfo& info) const {
    const double of_full = sweep_span(info).large() ? 300 : 3600;
    return budget_s.value_or(profile == "full" ? of_full : profile == "study" ? 600 : 120);
  }
  int process_count(const DeviceInfo& info) const {
    return processes > 0 ? processes : profile == "full" && !sweep_span(info).large() ? 5 : 3;
  }
  /// The file of the samples: measurements.samples.jsonl for measurements.jsonl. Empty if the measurements go to a
  /// pipe, to a device or to a name in /dev.
  std::string samples_path() const;
  /// The axis that --axis gives by this name; null if --axis does not name the axis.
  const Axis* axis(std::string_view name) const;
};

/// Parses a command line. For --help and --version, prints their text and returns nothing. Throws BadInput with one
/// line.
std::optional<Options> parse_options(int argc, const char* const* argv, const ExperimentSpec& spec);

/// Returns the cases that the options select, as groups. The cases of a group take turns while they are measured. The
/// groups come from the profile's sweep, in which axes from --axis and from input files replace the sweep's own axes.
/// With ExperimentSpec::default_tile and a command line that names no tile, only the default tile is selected in two
/// situations: a shape axis is named and a single shape is left, or --dump-output is given. Throws BadInput, for
/// example if --dump-output is given, but several cases are selected.
std::vector<std::vector<Case>> select_cases(const ExperimentSpec& spec, const Options& options, const DeviceInfo& info);

/// Returns a sentence for each value from --axis that no selected case has, since other axes decide the value of this
/// axis, and with the profile `study` for each value that no case of the study has. `groups` are the selected cases.
std::vector<std::string> unmet_values(const ExperimentSpec& spec, const Options& options, const DeviceInfo& info,
                                      const std::vector<std::vector<Case>>& groups);

}  // namespace attn
