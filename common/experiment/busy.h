// Says whether something disturbed a run: other programs, throttling, or more threads than cores.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/comparison.h"

namespace attn {

/// `busy_s` is the busy time since the machine started, summed over the cores of this process's affinity mask. `own_s`
/// is the CPU time of this process and of the child processes that this process has waited for.
struct CoreTimes {
  int cores = 0;
  double busy_s = 0;  // for all programs, and for other virtual machines of the host
  double own_s = 0;
  std::chrono::steady_clock::time_point at = {};
};
/// Reads the affinity mask and /proc/stat. `cores` is 0 if either cannot be read.
CoreTimes core_times();
/// The number of cores that other programs used on average between two readings; 0 if a reading failed, or if the
/// readings are of different numbers of cores.
double others(const CoreTimes& begin, const CoreTimes& end);

/// Returns a line for each kind of disturbance of a run: more threads than cores, a busy machine, and throttling.
/// `cores` is the number of cores that this process may use; `others` is the number of cores that other programs used
/// on average during the run.
std::vector<std::string> disturbances(const DeviceInfo& device, const std::vector<Measurement>& results,
                                      const std::vector<Comparison>& comparisons, int cores, double others);

}  // namespace attn
