// The sweep of proto1_flash: the axes that vary, and their values.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/answer.h"
#include "common/records/case.h"

namespace attn {

/// The axes of the tile: the axes whose values a user may choose for a given problem.
std::vector<std::string> flash_tile_axes();

/// The axes in which the cases of one group may differ (group() of case.h). The cases of a group have the same shape.
std::vector<std::string> flash_compared_axes();

/// Returns the sweep of a profile, "quick" (minutes on two cores) or "full".
Sweep flash_sweep(const std::string& profile, const DeviceInfo& device);

/// Returns what the answer that a run prints at its end is about: the choice of a tile, and the claims whose advice it
/// gives.
AnswerSpec flash_answer();

/// Returns the bytes of threadgroup memory that the published study's kernel takes for the case (for --dry-run).
/// Returns 0 if the device is not Metal, or if the case does not run the kernel `tuned`.
size_t flash_study_bytes(const Case& config, const DeviceInfo& device);

}  // namespace attn
