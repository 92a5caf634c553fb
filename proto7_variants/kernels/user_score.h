// The modifiers of score.h, then the user's score function, then the user's mask function.
#pragma once

#define score modified_score
#define score_tile modified_tile
#include "proto7_variants/kernels/score.h"
#undef score
#undef score_tile
#include "proto7_variants/kernels/user_functions.h"

#undef SCORE_IS_IDENTITY
#undef SCORE_IS_LINEAR
#define SCORE_IS_IDENTITY 0

/// What the functions make of a score that the modifiers have changed.
static inline float user_changed(float s, int q, int k, const ScoreContext& context) {
#if USER_SCORE
  s = user_score::score(s, q, k, context);
#endif
#if USER_MASK  // the one place where kernels ask the mask function
  if (!user_mask::visible(q, k, context)) s = -INFINITY;
#endif
  return s;
}

#ifdef SCORE_GRAIN
#ifdef SCORE_OUT
constexpr float modified_out = SCORE_OUT;
#undef SCORE_OUT
#define SCORE_OUT 1.0f
#else
constexpr float modified_out = 1;
#endif
static inline void score_tile(float* s, int keys, int q, int k, const ScoreContext& context) {
  modified_tile(s, keys, q, k, context);
  UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
    s[i] = user_changed(modified_out * s[i], q + i / 2 % 2 * 8, k + i / 4 * 8 + i % 2, context);
  }
}
#endif

static inline float score(float s, int q, int k, const ScoreContext& context) {
  return user_changed(modified_score(s, q, k, context), q, k, context);
}
