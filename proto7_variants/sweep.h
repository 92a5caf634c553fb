// The axes of proto7_variants, and what its profiles sweep.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> variants_axes();
/// The axes that tell the cases of one comparison apart: the modifiers, how key/value heads are found, and the tile.
std::vector<std::string> variants_compared_axes();
/// The same but for the tile, and what is launched: naming one leaves the others out.
std::set<std::string> variants_narrowing_axes();
Sweep variants_sweep(const std::string& profile, const DeviceInfo& device);
/// Where the user gives a function: the shapes alone; the file's option adds the axis, with the function and without.
Sweep functions_sweep(const std::string& profile, const DeviceInfo& device);
/// The task is attention, its heads are found by an index and modifiers are off, where nothing else is named; the rest
/// as attention has it. What means nothing for a task is off.
void complete_variants(Case& config, const DeviceInfo& device);

}  // namespace attn
