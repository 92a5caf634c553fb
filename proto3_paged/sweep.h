// The axes of proto3_paged, and what its profiles sweep.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> paged_axes();
/// The axes that tell the cases of one comparison apart: how the cache lies, and how the work is shared out.
std::vector<std::string> paged_compared_axes();
Sweep paged_sweep(const std::string& profile, const DeviceInfo& device);
/// One query over a contiguous cache of Q's type, shared out by the rule, where nothing else is named. A contiguous
/// cache has no order of pages, and nothing turns where nothing is appended.
void complete_paged(Case& config, const DeviceInfo& device);

}  // namespace attn
