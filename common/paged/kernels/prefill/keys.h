// A query sees the keys of its sequence that own_keys.h allows: the caller's keys hook or, without one, the default in
// this folder.
#pragma once

#include "common/paged/kernels/prefill/prefill.h"

#define visible_keys visible_keys_of_sequence
#include "common/paged/kernels/prefill/own_keys.h"
#undef visible_keys

#undef KEYS_ARE_DEFAULT
#define KEYS_ARE_DEFAULT 0
#define KEYS_END_EARLY 1
static inline int end_of_keys(const ScoreContext& context) {
  return length_of(prefill_of(context), context.batch, context.kv_len);
}

static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  const ScoreContext own = of_sequence(context);
  const KeyRange keys = visible_keys_of_sequence(q, own);
  return {keys.begin, keys.end < own.kv_len ? keys.end : own.kv_len};
}
