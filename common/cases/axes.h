// The axes of attention: what a case of any attention experiment may say, and what follows from what it leaves out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/flash.h"
#include "common/experiment/setting.h"
#include "common/launch/plan.h"
#include "common/records/case.h"

namespace attn {

inline constexpr int64_t longest_sequence = int64_t{1} << 24;  // that an axis allows, in tokens

std::vector<AxisInfo> flash_axes();

/// kv_len and kv_heads follow q_len and q_heads, and the tile follows the shape, where they are not named. Tile axes
/// are 0 for `naive`, which has no tile.
void complete_flash(Case& config, const DeviceInfo& device);
/// The same where hooks change what is the fastest tile.
void complete_modified(Case& config, const DeviceInfo& device, const TileHints& hints);

/// One launch of attention, with the case's FlashConfig. Throws BadInput for a case that no device can run.
CasePlan flash_plan(const Case& config, const Setting& setting);

/// The shape axes that a safetensors file with q, k, v fixes. Throws BadInput.
std::vector<Axis> flash_input_axes(const std::string& path);

}  // namespace attn
