// The default for own_keys.h, if the caller has no keys hook: the rule of CAUSAL, for a sequence with kv_len keys.
#pragma once

#include "common/attention/kernels/attention.h"

#define KEYS_BEGIN_AT_ZERO 1

static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  return {0, CAUSAL ? causal_end(q, context.q_len, context.kv_len) : context.kv_len};
}
