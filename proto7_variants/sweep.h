// The axes and the sweeps of proto7_variants.
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
/// The axes of modifiers, rotary positions, key/value heads and tasks. Naming one of them leaves the sweep's blocks of
/// the others out (ExperimentSpec::narrowing_axes).
std::set<std::string> variants_narrowing_axes();
Sweep variants_sweep(const std::string& profile, const DeviceInfo& device);
/// The sweep of a run with a user's function: only the shapes. The file's option adds its axis, with the function and
/// without it.
Sweep functions_sweep(const std::string& profile, const DeviceInfo& device);
/// Sets the axes that a case does not name. The task is attention, heads are found by an index, and modifiers are off;
/// the other axes are as for attention. Axes that mean nothing for the task are off.
void complete_variants(Case& config, const DeviceInfo& device);

}  // namespace attn
