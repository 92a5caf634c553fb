// The axes and the sweeps of proto5_codegen.
#pragma once

#include <string>
#include <vector>

#include "common/device/device.h"
#include "common/experiment/answer.h"
#include "common/records/case.h"

namespace attn {

std::vector<AxisInfo> codegen_axes();
Sweep codegen_sweep(const std::string& profile, const DeviceInfo& device);
/// Sets the axes that a case does not name. An axis that the case's work does not have gets the value 0.
void complete_codegen(Case& config, const DeviceInfo& device);

/// Returns the choices and the claims that the answer at the end of a run shows.
AnswerSpec codegen_answer();

}  // namespace attn
