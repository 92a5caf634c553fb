// The axes and the sweeps of proto5_codegen.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> codegen_axes();
Sweep codegen_sweep(const std::string& profile, const DeviceInfo& device);
/// Sets the axes that a case does not name. An axis that the case's work does not have gets the value 0.
void complete_codegen(Case& config, const DeviceInfo& device);

/// What the program of the experiment runs, and what its tests check.
ExperimentSpec codegen_experiment();

}  // namespace attn
