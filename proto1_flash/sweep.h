// The sweep of proto1_flash: the axes and values that it varies.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/case.h"

namespace attn {

/// The axes in which the cases of one comparison differ. The cases of one comparison share the shape.
std::vector<std::string> flash_compared_axes();

/// The sweep of a profile: "quick" (minutes on two cores) or "full".
Sweep flash_sweep(const std::string& profile, const DeviceInfo& device);

}  // namespace attn
