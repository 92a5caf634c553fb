// The axes and the sweeps of proto7_variants.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> variants_axes();
/// For ExperimentSpec::compared_axes.
std::vector<std::string> variants_compared_axes();
/// For ExperimentSpec::narrowing_axes.
std::set<std::string> variants_narrowing_axes();
Sweep variants_sweep(const std::string& profile, const DeviceInfo& device);
/// Returns the sweep of a run with a user's function. The sweep has only the axes of shapes; the option that names the
/// file adds the function's axis.
Sweep functions_sweep(const std::string& profile, const DeviceInfo& device);
/// Sets the axes that a case does not name. By default modifiers are off. Turns off the axes that mean nothing for the
/// task.
void complete_variants(Case& config, const DeviceInfo& device);

/// What the program of the experiment runs, and what its tests check.
ExperimentSpec variants_experiment();

}  // namespace attn
