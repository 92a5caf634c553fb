// A row of attention by its definition (attention.h), in the cpu dialect, with sums in double. A kernel includes the
// score hook before this file, because a hook must not be included twice.
#pragma once

#include "common/attention/kernels/softmax.h"

#ifndef SCORE_GRAIN
#define SCORE_GRAIN SCORE_ELEMENT
#endif

/// Applies the score hook to one score, even if the hook takes many scores at once.
INLINE float hooked_score(float s, int query, int key, const ScoreContext& context) {
#if defined(VECTOR_WIDTH_VALUE) && SCORE_GRAIN == SCORE_ROW
  float lanes[VECTOR_WIDTH] = {s};
  score_row(lanes, query, key, context);
  return lanes[0];
#elif defined(VECTOR_WIDTH_VALUE) && SCORE_GRAIN == SCORE_TILE
  float lanes[TILE_VECTORS * VECTOR_WIDTH] = {s};
  score_tile(lanes, 1, query, key, context);
  return lanes[0];
#else
  return score(s, query, key, context);
#endif
}

/// Computes the row of O of one query. The query's scores and the sink must be finite or -infinity. score_of(key) is a
/// score after all hooks, values_of(key)(d) is element d of the key's row of V, and store(d, output) takes element d of
/// O. HEAD_DIM may be known only at run time, so the function computes most_columns elements of O at a time.
template <typename Scores, typename Values, typename Store>
INLINE void exact_row(KeyRange keys, float sink, const Scores& score_of, const Values& values_of, const Store& store) {
  constexpr int most_columns = 128;
  for (int first = 0; first < HEAD_DIM; first += most_columns) {
    const int columns = HEAD_DIM - first < most_columns ? HEAD_DIM - first : most_columns;
    float maximum = sink;
    double sum = sink == hidden_score ? 0 : 1, sums[most_columns] = {};
    bool some_number = true;  // false once all sums are NaN: then no later key changes these columns
    for (int key = keys.begin; key < keys.end && some_number; ++key) {
      const float s = score_of(key);
      if (s == hidden_score) continue;
      const float largest = s > maximum ? s : maximum;
      const double alpha = __builtin_exp2f((maximum - largest) * log2_e);
      const double weight = __builtin_exp2f((s - largest) * log2_e);
      maximum = largest;
      sum = sum * alpha + weight;
      const auto value = values_of(key);
      int numbers = 0;
      VECTORIZE for (int d = 0; d < columns; ++d) {
        sums[d] = sums[d] * alpha + weight * value(first + d);
        numbers += sums[d] == sums[d];
      }
      some_number = numbers > 0;
    }
    for (int d = 0; d < columns; ++d) store(first + d, static_cast<float>(sum != 0 ? sums[d] / sum : 0));
  }
}
