// The setting that a plan may depend on (the device and the user's files), and the plan of a case.
#pragma once

#include <any>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/device/device.h"
#include "common/launch/plan.h"

namespace attn {

/// The paths that an experiment's own file options give, by the option's name with its dashes.
using Files = std::map<std::string, std::string>;
/// The path of an option; empty where the option is not given.
std::string file_of(const Files& files, const std::string& option);
/// Whether a file is given for any option.
bool has_files(const Files& files);

struct Setting {
  DeviceInfo device;
  Files files = {};

  std::string file(const std::string& option) const { return file_of(files, option); }
};

/// The bytes that the tensors and the oracle of a case take, on the device and in the host's memory.
struct Memory {
  double device = 0, host = 0;
};

/// The plan of a case, with the case's typed configuration. The configuration is parsed once, for the plan and for the
/// plan's problem.
class CasePlan : public Plan {
 public:
  CasePlan() = default;
  CasePlan(Plan plan) : Plan(std::move(plan)) {}
  template <typename Config>
  CasePlan(Plan plan, Config config) : Plan(std::move(plan)), config_(std::move(config)) {}

  /// Throws std::logic_error where the plan has no configuration of this type.
  template <typename Config>
  const Config& config() const {
    const auto* const kept = std::any_cast<Config>(&config_);
    if (!kept) throw std::logic_error("the plan has no configuration of this type");
    return *kept;
  }

  /// The memory that the problem of the plan will allocate. If both numbers are 0, the experiment assumes Work::bytes
  /// of memory on the device, and as much in the host's memory.
  Memory memory = {};
  /// True if `work` is only an upper limit. Problem::work() then returns the work that the launches do.
  bool work_is_limit = false;

 private:
  std::any config_;
};

}  // namespace attn
