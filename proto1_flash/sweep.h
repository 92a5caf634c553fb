// The sweep of proto1_flash: the axes that vary, and their values.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

/// The axes of the tile: the axes whose values a user may choose for a given problem.
std::vector<std::string> flash_tile_axes();

/// Returns the sweep of a profile, "quick" (minutes on two cores) or "full".
Sweep flash_sweep(const std::string& profile, const DeviceInfo& device);

/// What the program of the experiment runs, and what its tests check.
ExperimentSpec flash_experiment();

}  // namespace attn
