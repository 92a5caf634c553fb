// The sink hook: a logit for each head that takes part in the softmax of every row as one more key would, of which
// there is no value (attention sinks: Xiao et al. 2023; gpt-oss, 2025). It makes the denominator greater, and counts in
// the log-sum-exp. This file has none; an experiment puts another text in its place
// (KernelSource::includes["common/attention/kernels/sink.h"]).
//
// A row that sees no key then gives 0, and the sink as its log-sum-exp.
#pragma once

#include "common/attention/kernels/attention.h"

/// False in every other hook.
#define SINK_IS_NONE 1

/// The logit, as a scaled score is; -INFINITY: none for this head.
static inline float sink_logit(const ScoreContext& /*context*/) { return 0; }
