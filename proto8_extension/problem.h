// Problems of proto8_extension: calls, timed on the host.
#pragma once

#include <functional>
#include <memory>

#include "common/experiment/experiment.h"

namespace attn {

/// The kernel that a case's call launches. Or why there is no such path. The plan of a FlashConfig.
CasePlan extension_plan(const Case& config, const Setting& setting);

/// All cases of a run share device and engines, those of one shape their tensors.
std::function<std::unique_ptr<HostProblem>(Experiment&, const Case&, const CasePlan&)> extension_problems();

}  // namespace attn
