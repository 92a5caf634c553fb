// The axes of proto3_paged, and the sweeps of its profiles.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/answer.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> paged_axes();
/// Returns the axes in which compared cases may differ: the layout and the type of the cache, how tokens get into the
/// cache, how the work is divided, and the modifiers of the scores.
std::vector<std::string> paged_compared_axes();
Sweep paged_sweep(const std::string& profile, const DeviceInfo& device);
/// Sets the axes that the case does not name: one query over a contiguous cache of Q's type, with as many workers as
/// the rule says (workers=0). A contiguous cache always gets page_order=identity. A case that appends no token always
/// gets rotary_dim=0 and rope_pairing=half_split.
void complete_paged(Case& config, const DeviceInfo& device);

/// Returns what the answer at the end of a run has: the choices of a user, and the claims that advise users.
AnswerSpec paged_answer();

/// ExperimentSpec::study_bytes of this experiment.
size_t paged_study_bytes(const Case& config, const DeviceInfo& device);

}  // namespace attn
