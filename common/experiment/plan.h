// A plan: what a case does on a device, worked out without touching one. Dry runs, skips, --resume, records and the
// loop itself all read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/measurement.h"

namespace attn {

/// The paths that an experiment's own file options give, by the option's name with its dashes.
using Files = std::map<std::string, std::string>;
/// Empty where the option is not given.
std::string file_of(const Files& files, const std::string& option);

/// One launch of a kernel.
struct Launch {
  KernelSource source;
  Grid grid = {};
  uint32_t threads = 1;          // of a threadgroup
  size_t threadgroup_bytes = 0;  // of a threadgroup, beside what the kernel declares itself
  std::string phase = {};        // names the launch among those of its plan
};

struct Plan {
  /// In the order in which they run. Of a case about the host: the kernels that it is about; none of them is launched.
  std::vector<Launch> launches = {};
  Work work = {};           // of all launches together
  bool host = false;        // the case is about the host (HostProblem)
  std::string unable = {};  // why the device cannot run it, in words with the figures; empty where it can
};

/// What a case runs under, as far as a plan may depend on it.
struct Setting {
  DeviceInfo device;
  Files files = {};

  std::string file(const std::string& option) const { return file_of(files, option); }
};

/// Why a plan does not run on the device; threadgroup memory that does not fit is a reason for all plans.
std::optional<std::string> skip_reason(const Plan& plan, const DeviceInfo& device);

}  // namespace attn
