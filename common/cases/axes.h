// The axes of attention: which axes a case of an attention experiment has, which values an axis allows, and the value
// of an axis that a case leaves out.
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

/// Sets the axes that a case leaves out: kv_len to q_len, kv_heads to q_heads, and block_r and block_c to the values
/// that choose_tile() chooses. For the variant `naive`, which has no tile, block_r and block_c become 0.
void complete_flash(Case& config, const DeviceInfo& device);
/// Does what complete_flash() does, and passes `hints` to choose_tile().
void complete_modified(Case& config, const DeviceInfo& device, const TileHints& hints);

/// Returns the plan of a case. The plan has the case's FlashConfig, and one launch of attention or the reason why there
/// is none. Throws as flash_config_of() does.
CasePlan flash_plan(const Case& config, const Setting& setting);

/// Returns the axes whose values follow from the tensors q, k and v of a safetensors file: the shape axes and the
/// dtype. Throws BadInput if one of these tensors is missing, or if their shapes or types do not fit together or are
/// not allowed.
std::vector<Axis> flash_input_axes(const std::string& path);

}  // namespace attn
