// The axes of proto3_paged, and the sweeps of its profiles.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> paged_axes();
/// The axes in which compared cases differ: how the cache lies, and how the work is divided among workers.
std::vector<std::string> paged_compared_axes();
Sweep paged_sweep(const std::string& profile, const DeviceInfo& device);
/// Sets the axes that the case does not name: one query over a contiguous cache of Q's type, with the number of workers
/// by the rule. A contiguous cache has no order of pages. Nothing turns if no token is appended.
void complete_paged(Case& config, const DeviceInfo& device);

}  // namespace attn
