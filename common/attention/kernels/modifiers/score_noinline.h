// The modifiers of score.h in a function that is never inlined: kernels call it for each score.
#pragma once

#define score score_in_place
#define score_tile tile_in_place
#include "common/attention/kernels/modifiers/score.h"
#undef score
#undef score_tile

#undef SCORE_IS_LINEAR
#undef SCORE_GRAIN
#undef SCORE_AHEAD
#undef SCORE_IN
#undef SCORE_OUT
#define SCORE_IS_LINEAR 0

static NOINLINE float score(float s, int q, int k, const ScoreContext& context) {
  return score_in_place(s, q, k, context);
}

#ifdef VECTOR_WIDTH_VALUE
// Without SCORE_GRAIN, `tuned` on the cpu calls `score` in a loop that it asks the compiler to vectorise, which is
// impossible for a loop of calls. The loop of score_row() need not be vectorised.
#define SCORE_GRAIN SCORE_ROW
static inline void score_row(float* s, int q, int k, const ScoreContext& context) {
  for (int i = 0; i < VECTOR_WIDTH; ++i) s[i] = score(s[i], q + i, k, context);
}
#endif
