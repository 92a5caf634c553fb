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
#include "common/records/case.h"

namespace attn {

struct ExperimentSpec;

using DeviceOpener = std::function<std::unique_ptr<Device>(std::string_view spec)>;

struct Options {
  std::vector<std::string> arguments;  // argv
  std::string device = "cpu";
  std::string profile = "quick";  // or "full"
  std::vector<Axis> axes;         // as named by --axis
  bool list = false, dry_run = false, only_verify = false, resume = false, json = false, quiet = false;
  std::optional<double> budget_s;
  uint64_t seed = 1;
  std::string input, dump_output;
  Files files;  // of the experiment's own options
  std::string findings_path = "findings.jsonl", measurements_path = "measurements.jsonl";
  int shard_index = 1, shard_count = 1;
  std::optional<size_t> threadgroup_memory_bytes;
  std::string replay;  // id of a record, or the start of one
  DeviceOpener open_device = &Device::open;

  /// Seconds to measure for: --budget, else what the profile allows. A GPU does in minutes what takes a cpu an hour.
  double budget(const DeviceInfo& info) const {
    return budget_s.value_or(profile != "full" ? 120 : info.operations->span.large() ? 300 : 3600);
  }
  const Axis* axis(std::string_view name) const;
};

/// Nothing where the command line asked for --help or --version, which are printed. Throws BadInput in one line.
std::optional<Options> parse_options(int argc, const char* const* argv, const ExperimentSpec& spec);

/// The cases that the options select, as groups to be measured interleaved: the profile's sweep; axes named with --axis
/// or fixed by --input in place of its own; and, where these leave a single shape whose tile is not named, that shape's
/// default tile. Throws BadInput, also where --dump-output meets more than one case.
std::vector<std::vector<Case>> select_cases(const ExperimentSpec& spec, const Options& options, const DeviceInfo& info);

}  // namespace attn
