// Data that host and kernels of prefill share. Prefill is attention of many queries over a paged or contiguous cache,
// by the kernels of common/attention/kernels. The files of this folder replace hooks of these kernels. This file
// includes only headers of kernels.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/paged/kernels/decode.h"

/// ScoreContext::data points to a PrefillData. Query i of q_len stands at key length - q_len + i. On a GPU, if a
/// sequence's length is negative or above kv_len, the sequence's rows are NaN. A row is also NaN if it sees a key on a
/// page that the cache does not have.
struct PrefillData {
  const GLOBAL int* lengths;  // [batch]: keys of a sequence, including the keys of its queries
  const GLOBAL int* table;    // [batch, max_pages]: pages of a sequence
  int max_pages;
  const GLOBAL void* hook_data;  // of the caller's hooks
  NewTokens tokens;              // only if new tokens are appended, as the next two members
  int shares;                    // into which the new tokens are divided (before.h)
  GLOBAL unsigned* counters;     // [2]: how many shares were taken, and written; 0 before and after a launch
};

static inline const GLOBAL PrefillData& prefill_of(const ScoreContext& context) {
  return *static_cast<const GLOBAL PrefillData*>(context.data);
}

/// Returns the number of a sequence's keys; -1 if the sequence's length is negative or above kv_len.
static inline int length_of(const GLOBAL PrefillData& data, int batch, int kv_len) {
  const int length = data.lengths[batch];
  return static_cast<unsigned>(length) <= static_cast<unsigned>(kv_len) ? length : -1;
}

/// The context for a hook of the caller: its kv_len is the sequence's own number of keys.
#ifdef __METAL_VERSION__
static inline HookContext of_sequence(const ScoreContext& context) {
#else
static inline ScoreContext of_sequence(const ScoreContext& context) {
#endif
  const GLOBAL PrefillData& data = prefill_of(context);
  return {context.batch, context.head, context.q_heads, context.q_len, length_of(data, context.batch, context.kv_len),
          data.hook_data};
}
