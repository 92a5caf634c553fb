// The reverse device: one host thread runs threadgroups from last to first. Tests on this device reveal kernels that
// rely on the order of threadgroups, or on data that another threadgroup leaves. The device has two operations:
// attention with the variant `naive`, and the kernels that measure its highest rates (its ceilings).
#pragma once

#include <memory>
#include <string_view>

#include "common/device/device.h"

namespace attn {

std::unique_ptr<Device> open_reverse_device(std::string_view spec);

}  // namespace attn
