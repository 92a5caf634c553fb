// What proto5_codegen varies.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> codegen_axes();
Sweep codegen_sweep(const std::string& profile, const DeviceInfo& device);
/// What a case does not name; axes that its work does not have get the value that says so.
void complete_codegen(Case& config, const DeviceInfo& device);

}  // namespace attn
