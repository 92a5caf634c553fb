// Calls the caller's sink hook, own_sink.h.
#pragma once

#include "common/paged/kernels/prefill/prefill.h"

#define sink_logit sink_logit_of_sequence
#include "common/paged/kernels/prefill/own_sink.h"
#undef sink_logit

static inline float sink_logit(const ScoreContext& context) { return sink_logit_of_sequence(of_sequence(context)); }
