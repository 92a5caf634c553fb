// The sweep of proto4_constants: the axes that vary, and their values.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"
#include "proto4_constants/variants.h"

namespace attn {

std::vector<AxisInfo> constants_axes();

/// Returns the sweep of a profile. "quick" takes minutes on two cores. The other profile is "full".
Sweep constants_sweep(const std::string& profile, const DeviceInfo& device);

/// Sets the axes that the case lacks. An axis that the task does not use always gets a fixed value. A case with
/// `task=compile_one` always gets the tile that proto1_flash chooses.
void complete_constants(Case& config, const DeviceInfo& device);

/// Returns the reason why the device cannot run the case, or an empty text if the device can.
std::string constants_unable(const Case& config, const DeviceInfo& device);

/// Returns the variant that a case with task=run launches.
Variant run_variant(const Case& config);
/// Returns the variant that a case with task=compile_one compiles: run_variant(), with small_shape().
Variant compiled_variant(const Case& config);

/// What the program of the experiment runs, and what its tests check.
ExperimentSpec constants_experiment();

}  // namespace attn
