// The axes and the sweeps of proto6_linear.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> linear_axes();
/// The axes that are measured in turn: forms, scans, chunks, gates.
std::vector<std::string> linear_compared_axes();
Sweep linear_sweep(const std::string& profile, const DeviceInfo& device);
/// The option --feature-function for a feature map of the user's, and the sweep with such a map.
FileOption feature_file();
Sweep feature_sweep(const std::string& profile, const DeviceInfo& device);
/// Sets the axes that a case does not name. An axis that the case's variant does not have gets the value that says so.
void complete_linear(Case& config, const DeviceInfo& device);

}  // namespace attn
