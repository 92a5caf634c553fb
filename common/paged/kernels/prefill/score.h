// Calls the caller's score hook, own_score.h, with the sequence's own number of keys.
#pragma once

#include "common/paged/kernels/prefill/prefill.h"

#define score score_of_sequence
#define score_slope score_slope_of_sequence
#define score_tile score_tile_of_sequence
#include "common/paged/kernels/prefill/own_score.h"
#undef score
#undef score_slope
#undef score_tile
#ifdef SCORE_AHEAD
#error "a score hook that reads ahead does not know of lengths"
#endif

template <typename Place>
static inline float score(float s, Place q, Place k, const ScoreContext& context) {
  return score_of_sequence(s, q, k, of_sequence(context));
}
#ifdef SCORE_IS_LINEAR
static inline float score_slope(const ScoreContext& context) { return score_slope_of_sequence(of_sequence(context)); }
#endif
#ifdef SCORE_GRAIN
static inline void score_tile(float* s, int keys, int q, int k, const ScoreContext& context) {
  score_tile_of_sequence(s, keys, q, k, of_sequence(context));
}
#endif
