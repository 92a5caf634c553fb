// The sink hook gives a logit for each head (attention sinks: Xiao et al. 2023; gpt-oss, 2025). The exponential of the
// logit is added to the denominator of the softmax of every row of the head, and counts in the log-sum-exp. The sink
// adds nothing to the numerator. With this file no head has a sink. An experiment replaces this file by another text
// (KernelSource::includes["common/attention/kernels/sink.h"]).
//
// If a row of a head with a sink sees no key, its outputs are 0, and its log-sum-exp is the sink.
#pragma once

#include "common/attention/kernels/attention.h"

/// Whether no head has a sink. Every sink hook defines this macro.
#define SINK_IS_NONE 1

/// Returns the logit, in the units of scaled scores. -INFINITY: this head has no sink.
static inline float sink_logit(const ScoreContext& /*context*/) { return 0; }
