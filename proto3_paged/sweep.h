// The axes of proto3_paged, and the sweeps of its profiles.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/experiment.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> paged_axes();
/// Returns the axes in which compared cases may differ.
std::vector<std::string> paged_compared_axes();
Sweep paged_sweep(const std::string& profile, const DeviceInfo& device);
/// Gives its default to each axis that the case does not name. The defaults describe one query over a contiguous cache
/// of Q's type. A contiguous cache always gets `page_order=identity`. A case that appends no token always gets
/// `rotary_dim=0` and `rope_pairing=half_split`.
void complete_paged(Case& config, const DeviceInfo& device);

/// What the program of the experiment runs, and what its tests check.
ExperimentSpec paged_experiment();

}  // namespace attn
