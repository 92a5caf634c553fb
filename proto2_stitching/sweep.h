// The sweep of proto2_stitching: the axes that vary, and their values.
#pragma once

#include <string>
#include <vector>

#include "common/cases/user_functions.h"
#include "common/device/device.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> stitch_axes();

/// Returns the sweep of a profile. "quick" takes minutes on two cores. The other profile is "full".
Sweep stitch_sweep(const std::string& profile, const DeviceInfo& device);

/// Sets the axes that the case does not name. The shape and the tile get the defaults of proto1_flash. `grain` is
/// `element` by default, and always with `form=monolithic`. `work` is 16 by default with `function=chain`, and always 0
/// with other functions. `variant` is default_variant() by default.
void complete_stitch(Case& config, const DeviceInfo& device);

/// Returns the values of the axes `function` and `work` for a run in which --score-function names the file `path`.
/// Throws BadInput as read_function() does.
std::vector<Axis> score_function_axes(const std::string& path);

/// What the program of the experiment runs, and what its tests check.
ExperimentSpec stitch_experiment();

}  // namespace attn
