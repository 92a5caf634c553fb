// The reverse device: one host thread runs threadgroups last to first. A kernel that relies on their order, or on what
// another left behind, shows. Of the project's kernels it has attention's `naive` and the ceilings.
#pragma once

#include <memory>
#include <string_view>

#include "common/device/device.h"

namespace attn {

std::unique_ptr<Device> open_reverse_device(std::string_view spec);

}  // namespace attn
