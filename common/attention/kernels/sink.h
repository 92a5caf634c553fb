// The sink hook gives a logit for each head. The logit takes part in the softmax of every row like the score of one
// more key, which has no value (attention sinks: Xiao et al. 2023; gpt-oss, 2025). The logit makes the denominator
// greater, and counts in the log-sum-exp. This file has no sink. An experiment replaces this file by another text
// (KernelSource::includes["common/attention/kernels/sink.h"]).
//
// With a sink, a row that sees no key gives 0, and the sink as its log-sum-exp.
#pragma once

#include "common/attention/kernels/attention.h"

/// Whether no head has a sink. Every sink hook defines this macro.
#define SINK_IS_NONE 1

/// Returns the logit, in the units of scaled scores. -INFINITY: this head has no sink.
static inline float sink_logit(const ScoreContext& /*context*/) { return 0; }
