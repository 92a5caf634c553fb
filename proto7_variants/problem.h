// One attention problem with modifiers: the tuned kernels of common/attention with the hooks of modifiers.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/experiment/experiment.h"
#include "proto7_variants/modifiers.h"

namespace attn {

/// The hooks of a case, without those of the user's functions; none where nothing is modified: the kernel is then the
/// plain one, also in its text.
std::optional<AttentionHooks> variants_hooks(const Case& config);

/// One launch of attention with its modifiers, the arithmetic of the pairs that no rule hides, those of a mask function
/// among them; or why there is none.
Plan variants_plan(const Case& config, const Setting& setting);

/// Makes problems of the experiment; cases of one shape share their tensors, and the oracle's answer.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)> variants_problems();

}  // namespace attn
