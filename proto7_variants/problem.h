// The problems of proto7_variants: attention with the hooks of modifiers.h, by the tuned kernels of common/attention,
// maybe behind a copy of its key/value heads; and that copy alone.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/experiment/experiment.h"
#include "proto7_variants/modifiers.h"

namespace attn {

/// The hooks of a case; none where nothing is modified: the kernel is then the plain one, also in its text.
std::optional<AttentionHooks> variants_hooks(const Case& config);

/// What the case's task launches, or why it does not run. Attention: one launch with its modifiers, the arithmetic of
/// the pairs that no rule hides; with kv_heads_by=copy that of ExpandLaunch before it.
Plan variants_plan(const Case& config, const Setting& setting);

/// Makes the problems of all tasks; cases of one shape share their tensors, and the oracle's answer.
std::function<std::unique_ptr<Problem>(Experiment&, const Case&, const Plan&)> variants_problems();

}  // namespace attn
