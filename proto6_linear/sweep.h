// The axes and the sweeps of proto6_linear.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> linear_axes();
/// Returns the axes whose values are measured in turn.
std::vector<std::string> linear_compared_axes();
Sweep linear_sweep(const std::string& profile, const DeviceInfo& device);
/// The option --feature-function for the user's feature map, and the sweep of a run with this option.
FileOption feature_file();
Sweep feature_sweep(const std::string& profile, const DeviceInfo& device);
/// Sets the axes that a case does not name. An axis that the case's variant does not use gets the value that turns it
/// off: 0, "none" or "identity".
void complete_linear(Case& config, const DeviceInfo& device);

/// What the program of the experiment runs, and what its tests check.
ExperimentSpec linear_experiment();

}  // namespace attn
