// What proto6_linear varies.
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
/// A feature map of the user's: --feature-function, and what is swept with one.
FileOption feature_file();
Sweep feature_sweep(const std::string& profile, const DeviceInfo& device);
/// What a case does not name; axes that its variant does not have get the value that says so.
void complete_linear(Case& config, const DeviceInfo& device);

}  // namespace attn
