// Applies the modifiers of score.h, and then the user's score function.
#pragma once

#define score modified_score
#define score_tile modified_tile
#include "common/attention/kernels/modifiers/score.h"
#undef score
#undef score_tile
#include "proto7_variants/kernels/user_functions.h"

#undef SCORE_IS_IDENTITY
#undef SCORE_IS_LINEAR
#undef SCORE_IS_BOUNDED
#define SCORE_IS_IDENTITY 0

#ifdef SCORE_GRAIN
#ifdef SCORE_OUT
constexpr CONSTANT float modified_out = SCORE_OUT;
#undef SCORE_OUT
#define SCORE_OUT 1.0f
#else
constexpr CONSTANT float modified_out = 1;
#endif
static inline void score_tile(float* s, int keys, int q, int k, const ScoreContext& context, const ScoreAhead& read) {
  modified_tile(s, keys, q, k, context, read);
  UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
    s[i] = user_score::score(modified_out * s[i], q + i / 2 % 2 * 8, k + i / 4 * 8 + i % 2, context);
  }
}
static inline void score_tile(float* s, int keys, int q, int k, const ScoreContext& context) {
  ScoreAhead read;
  read.read(q, k, context);
  score_tile(s, keys, q, k, context, read);
}
#endif

static inline float score(float s, int q, int k, const ScoreContext& context) {
  return user_score::score(modified_score(s, q, k, context), q, k, context);
}
