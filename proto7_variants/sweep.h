// The axes of proto7_variants, and what its profiles sweep.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> variants_axes();
/// The axes that tell the cases of one comparison apart: the modifiers.
std::vector<std::string> variants_compared_axes();
Sweep variants_sweep(const std::string& profile, const DeviceInfo& device);
/// Where the user gives a function: the shapes alone; the file's option adds the axis, with the function and without.
Sweep functions_sweep(const std::string& profile, const DeviceInfo& device);
/// Modifiers are off where they are not named; the rest as attention has it.
void complete_variants(Case& config, const DeviceInfo& device);

}  // namespace attn
