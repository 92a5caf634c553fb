// What host and kernels of prefill share: attention of long queries over a paged or contiguous cache by the kernels of
// common/attention/kernels, which get what is special about it by their hooks. The texts of this folder stand in for
// keys.h, pages.h, score.h and sink.h there, and where new tokens are appended for before.h and rotate.h. No other
// headers than the kernels' own.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/paged/kernels/decode.h"

/// What ScoreContext::data points to. Query i of q_len stands at key length - q_len + i. On a GPU the rows of a
/// sequence are NaN where its length is negative, or above kv_len, and those that see a key where the table names no
/// page of the cache.
struct PrefillData {
  const int* lengths;  // [batch]: keys of a sequence, those of its queries among them
  const int* table;    // [batch, max_pages]: pages of a sequence
  int max_pages;
  const void* hook_data;  // of the caller's hooks
  /// Where new tokens are appended: the launch writes them in so many shares, each as soon as a threadgroup takes it.
  NewTokens tokens;
  int shares;
  unsigned* counters;  // of shares taken, of shares written; 0 before and after a launch
};

static inline const PrefillData& prefill_of(const ScoreContext& context) {
  return *static_cast<const PrefillData*>(context.data);
}

/// The keys of a sequence, of at most kv_len; -1: its length is none that the cache has.
static inline int length_of(const PrefillData& data, int batch, int kv_len) {
  const int length = data.lengths[batch];
  return static_cast<unsigned>(length) <= static_cast<unsigned>(kv_len) ? length : -1;
}

/// The context as a hook of the caller wants it: of a sequence with its own keys alone.
static inline ScoreContext of_sequence(const ScoreContext& context) {
  const PrefillData& data = prefill_of(context);
  return {context.batch, context.head, context.q_heads, context.q_len, length_of(data, context.batch, context.kv_len),
          data.hook_data};
}
