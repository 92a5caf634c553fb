// The default, for a caller without a keys hook: a query sees all keys of its sequence or, with CAUSAL, the keys up to
// its own position. context.kv_len is the sequence's number of keys.
#pragma once

#include "common/attention/kernels/attention.h"

#define KEYS_BEGIN_AT_ZERO 1

static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  return {0, CAUSAL ? causal_end(q, context.q_len, context.kv_len) : context.kv_len};
}
