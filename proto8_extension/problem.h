// The problems of proto8_extension time calls on the host.
#pragma once

#include <functional>
#include <memory>

#include "common/experiment/experiment.h"

namespace attn {

/// Returns the plan of the kernel that a case's call launches, with the kernel's FlashConfig. If this build lacks the
/// case's `path`, or if the values of the case do not fit together, the plan's `unable` says why.
CasePlan extension_plan(const Case& config, const Setting& setting);

/// Makes the experiment's problems. Cases of one shape share their tensors.
std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> extension_problems();

}  // namespace attn
