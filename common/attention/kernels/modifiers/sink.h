// SINKS: a table gives the logit of each head's sink (gpt-oss, 2025).
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/modifiers/modifiers.h"

#define SINK_IS_NONE (SINKS == 0)

static inline float sink_logit(const ScoreContext& context) {
  return table_at<float>(context, modifiers_of(context).sinks)[context.head];
}
