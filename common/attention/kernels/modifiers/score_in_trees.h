// The modifiers of score.h, and a tree of new tokens. The new tokens are the q_len queries, and the last q_len keys.
// For each new token, a table says which of the first 64 new tokens of its sequence the token sees. All tokens see the
// older keys. If a sequence is shorter than q_len, its first tokens stand before key 0 and see no key. The score hook
// hides the other pairs, because the keys that a token sees are no range for a keys hook, and the kernels for decoding
// take no mask hook.
#pragma once

#define score score_without_tree
#include "common/attention/kernels/modifiers/score.h"
#undef score
#include "common/attention/kernels/modifiers/later.h"

#undef SCORE_IS_IDENTITY
#undef SCORE_IS_LINEAR
#undef SCORE_IS_BOUNDED
#undef SCORE_GRAIN
#undef SCORE_AHEAD
#undef SCORE_IN
#undef SCORE_OUT
#define SCORE_IS_IDENTITY 0

static inline float hidden_in_tree() {
#ifdef __CUDACC__
  return -infinity();
#else
  return -INFINITY;
#endif
}

static inline bool seen_in_tree(int q, int k, const ScoreContext& context) {
  const int older = context.kv_len - context.q_len, token = k - older;
  if (q + older < 0) return false;
  if (token < 0) return true;
  const long long* const words = table_at<long long>(context, later_of(context).tree);
  return token < 64 && (words[context.batch * context.q_len + q] >> token & 1) != 0;
}

static inline float score(float s, int q, int k, const ScoreContext& context) {
  return seen_in_tree(q, k, context) ? score_without_tree(s, q, k, context) : hidden_in_tree();
}
