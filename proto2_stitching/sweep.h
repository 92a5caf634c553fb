// What proto2_stitching varies.
#pragma once

#include <string>
#include <vector>

#include "common/cases/user_functions.h"
#include "common/device/device.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> stitch_axes();
/// The axes within which cases are compared; what they share is the shape and the function.
std::vector<std::string> stitch_compared_axes();

/// `profile` is "quick" (minutes on two cores) or "full".
Sweep stitch_sweep(const std::string& profile, const DeviceInfo& device);

/// What follows from other axes where it is not named: the shape and tile as in proto1_flash; the grain, which
/// `monolithic` does not have; the work, which is 0 for every function but `chain`.
void complete_stitch(Case& config, const DeviceInfo& device);

/// The axes that --score-function fixes. Throws BadInput as read_function does.
std::vector<Axis> score_function_axes(const std::string& path);

}  // namespace attn
