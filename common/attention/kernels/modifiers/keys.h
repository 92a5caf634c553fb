// A query sees the keys that all rules allow. A query's own key is the key at its position; the own key of the last
// query is the last key. With WINDOW_BY_MASK, mask.h has the window.
//   CAUSAL         the keys up to its own key
//   PREFIX         the keys up to its own key, and the first PREFIX keys; for kernels with CAUSAL=0
//   WINDOW_LEFT    of the keys before its own key, the WINDOW_LEFT nearest; -1: all
//   WINDOW_RIGHT   of the keys after its own key, the WINDOW_RIGHT nearest; -1: all
//   LENGTHS        the first keys of the sequence, as many as a table says; later keys are padding
//   STARTS         the keys of the sequence from a first key on, which a table says; earlier keys are padding
//   DOCUMENTS      the keys of its own key's document
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/modifiers/modifiers.h"

#define KEYS_BEGIN_AT_ZERO ((WINDOW_LEFT < 0 || WINDOW_BY_MASK) && DOCUMENTS == 0 && STARTS == 0)
#define KEYS_ARE_DEFAULT (KEYS_BEGIN_AT_ZERO && (WINDOW_RIGHT < 0 || WINDOW_BY_MASK) && LENGTHS == 0 && PREFIX == 0)

static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  [[maybe_unused]] const int own = q + context.kv_len - context.q_len;
  KeyRange keys{0, CAUSAL ? causal_end(q, context.q_len, context.kv_len) : context.kv_len};
  if constexpr (PREFIX != 0) {
    keys.end = most(causal_end(q, context.q_len, context.kv_len), PREFIX);
  }
  if constexpr (WINDOW_LEFT >= 0 && !WINDOW_BY_MASK) {
    keys.begin = most(keys.begin, own - static_cast<int>(WINDOW_LEFT));
  }
  if constexpr (WINDOW_RIGHT >= 0 && !WINDOW_BY_MASK) {
    keys.end = least(keys.end, own + static_cast<int>(WINDOW_RIGHT) + 1);
  }
  if constexpr (LENGTHS != 0) {
    keys.end = least(keys.end, table_at<int>(context, modifiers_of(context).lengths)[context.batch]);
  }
  if constexpr (DOCUMENTS != 0) {
#ifdef __METAL_VERSION__
    const device KeyRange& document = table_at<KeyRange>(context, modifiers_of(context).documents)[most(own, 0)];
#else
    const KeyRange document = table_at<KeyRange>(context, modifiers_of(context).documents)[most(own, 0)];
#endif
    keys.begin = most(keys.begin, document.begin);
    keys.end = least(keys.end, document.end);
  }
  if constexpr (STARTS != 0) {
    keys.begin = most(keys.begin, table_at<int>(context, modifiers_of(context).starts)[context.batch]);
  }
  return keys;
}
