// Says whether something disturbed a run: other programs, throttling, or more threads than cores.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/comparison.h"

namespace attn {

/// `busy_s` is the time that the cores of this process's affinity mask have worked since the machine started. `own_s`
/// is the CPU time of this process and of the child processes that this process has waited for.
struct CoreTimes {
  int cores = 0;
  double busy_s = 0;  // for all programs, and for other virtual machines of the host
  double own_s = 0;
  std::chrono::steady_clock::time_point at = {};
};
/// Reads /proc/stat; `cores` is 0 where that fails.
CoreTimes core_times();
/// The cores that other programs used on average between two readings; 0 where a reading failed.
double others(const CoreTimes& begin, const CoreTimes& end);

/// One line for each disturbance of a run. `cores` are the cores that the process may use, `others` the cores that
/// other programs used during the run.
std::vector<std::string> disturbances(const DeviceInfo& device, const std::vector<Measurement>& results,
                                      const std::vector<Comparison>& comparisons, int cores, double others);

}  // namespace attn
