// What proto1_flash varies.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/records/case.h"

namespace attn {

/// The axes within which cases are compared; what they share is the shape.
std::vector<std::string> flash_compared_axes();

/// `profile` is "quick" (minutes on two cores) or "full".
Sweep flash_sweep(const std::string& profile, const DeviceInfo& device);

}  // namespace attn
