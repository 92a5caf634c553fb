// Says whether something disturbed a run: other programs, throttling, or more threads than cores.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/comparison.h"

namespace attn {

/// Busy times since the machine started, summed over the cores that this process may use.
struct CoreTimes {
  int cores = 0;
  double busy_s = 0;  // of all programs, and of other virtual machines of the host
  double own_s = 0;   // CPU time of this process and of all its descendants, running or ended
  std::chrono::steady_clock::time_point at = {};
};
/// `cores` is 0 if the times cannot be read.
CoreTimes core_times();
/// The number of cores that other programs used on average between two readings; 0 if unknown.
double others(const CoreTimes& begin, const CoreTimes& end);

/// Says that other programs used cores that the run needed, with figures; empty if they did not.
std::string sign_of_others(const DeviceInfo& device, int cores, double others);

/// Says what disturbed the timing of a case: other programs (as for disturbances()), samples that scatter. Empty if
/// nothing did, or if the case was not timed.
std::string disturbance(const DeviceInfo& device, const Measurement& result, int cores, double others);

/// Returns a line for each kind of disturbance of a run. `cores` is the number of cores that this process may use,
/// `others` the result of others() for the run.
std::vector<std::string> disturbances(const DeviceInfo& device, const std::vector<Measurement>& results,
                                      const std::vector<Comparison>& comparisons, int cores, double others);

}  // namespace attn
