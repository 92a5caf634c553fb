// The modifiers of score.h, switched at run time: one kernel, compiled with ALIBI, SOFT_CAP and BIAS, serves every
// combination. The hook's data says which modifiers are on, and gives the cap. A hook that takes many scores at once
// tests each modifier once for all of them.
#pragma once

#define score constant_score
#define score_tile constant_tile
#include "common/attention/kernels/modifiers/score.h"
#undef score
#undef score_tile
#undef SCORE_AHEAD
static_assert(SCORE_RULES == 3);

static inline float bias_at(int q, int k, const ScoreContext& context) {
  return bias_row(q, context)[modifiers_of(context).bias_kind == BIAS_OF_KEYS ? k : 0];
}

static inline float score(float s, int q, int k, const ScoreContext& context) {
  const GLOBAL ModifierData& on = modifiers_of(context);
  if (on.soft_cap != 0) s = on.soft_cap * tanh_of(s / on.soft_cap);
  if (on.alibi) s += score_slope(context) * static_cast<float>(k - own_key(q, context));
  if (on.bias_kind) s = with_bias(s, bias_at(q, k, context));
  return s;
}

#ifdef VECTOR_WIDTH_VALUE
#define SCORE_GRAIN SCORE_ROW
static inline void score_row(float* s, int q, int k, const ScoreContext& context) {
  const GLOBAL ModifierData& on = modifiers_of(context);
  if (on.soft_cap != 0) {
    const float cap = on.soft_cap, inverse = 1 / cap;
    VECTORIZE for (int i = 0; i < VECTOR_WIDTH; ++i) s[i] = cap * tanh_of(inverse * s[i]);
  }
  if (on.alibi) {
    const float slope = score_slope(context);
    VECTORIZE for (int i = 0; i < VECTOR_WIDTH; ++i) s[i] += slope * static_cast<float>(k - own_key(q + i, context));
  }
  if (on.bias_kind) {
    VECTORIZE for (int i = 0; i < VECTOR_WIDTH; ++i) s[i] = with_bias(s[i], bias_at(q + i, k, context));
  }
}
#elif defined(SCORE_GRAIN)
static inline void score_tile(float* s, int, int q, int k, const ScoreContext& context) {
  const GLOBAL ModifierData& on = modifiers_of(context);
  if (on.soft_cap != 0) {
    const float cap = on.soft_cap, inverse = 1 / cap;
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) s[i] = cap * tanh_of(inverse * s[i]);
  }
  if (on.alibi) {
    const float slope = score_slope(context);
    float first[2];
    for (int r = 0; r < 2; ++r) first[r] = slope * static_cast<float>(k - own_key(q + r * 8, context));
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) s[i] +=
        slope * static_cast<float>(i / 4 * 8 + i % 2) + first[i / 2 % 2];
  }
  if (on.bias_kind) {
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) s[i] += bias_at(q + i / 2 % 2 * 8, k + i / 4 * 8 + i % 2, context);
  }
}
#endif
