// The axes of attention: the values that a case of an attention experiment may set, and the values of axes that the
// case leaves out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/flash.h"
#include "common/experiment/setting.h"
#include "common/launch/plan.h"
#include "common/records/case.h"

namespace attn {

inline constexpr int64_t longest_sequence = int64_t{1} << 24;  // the largest length in tokens that an axis allows

std::vector<AxisInfo> flash_axes();

/// Sets the axes that a case leaves out: kv_len to q_len, kv_heads to q_heads, and the tile by the shape. The tile axes
/// are 0 for the variant `naive`, which has no tile.
void complete_flash(Case& config, const DeviceInfo& device);
/// Does what complete_flash() does, and also uses `hints` when it chooses the tile.
void complete_modified(Case& config, const DeviceInfo& device, const TileHints& hints);

/// Returns the plan of a case, which has one launch of attention and the case's FlashConfig. Throws BadInput for a case
/// that no device can run.
CasePlan flash_plan(const Case& config, const Setting& setting);

/// Returns the axes whose values follow from the tensors q, k and v of a safetensors file: the shape axes and the
/// dtype. Throws BadInput for a file that does not have these tensors, or has them in shapes or types that do not fit.
std::vector<Axis> flash_input_axes(const std::string& path);

}  // namespace attn
