// What proto1_flash varies, the default tile, and why a case is left out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/device.h"
#include "common/sweep.h"

namespace attn {

std::vector<AxisInfo> flash_axes();
/// The axes within which cases are compared; what they share is the shape.
std::vector<std::string> flash_compared_axes();

/// `profile` is "quick" (minutes on two cores) or "full".
Sweep flash_sweep(const std::string& profile, const DeviceInfo& device);

/// kv_len and kv_heads follow q_len and q_heads, and the tile follows the shape, where they are not named. Tile axes
/// are 0 for `naive`, which has no tile.
void complete_flash(Case& config, const DeviceInfo& device);

/// Why the case cannot run on the device, with the bytes it needs. Throws BadInput for one that no device can run.
std::optional<std::string> flash_skip_reason(const Case& config, const DeviceInfo& device);

/// The shape axes that a safetensors file with q, k, v fixes. Throws BadInput.
std::vector<Axis> flash_input_axes(const std::string& path);

}  // namespace attn
