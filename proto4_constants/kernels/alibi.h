// A score hook with a flag. ALIBI=1 subtracts slope * |q - k| from the score, with a slope for each head
// (Press et al. 2022). ALIBI=0 leaves the score as it is. ScoreContext::data: slopes [q_heads], f32.
#pragma once

#include "common/attention/kernels/attention.h"

#define SCORE_IS_IDENTITY (!ALIBI)

static inline float score(float s, int q, int k, const ScoreContext& context) {
#ifdef __METAL_VERSION__
  const device float* const slopes = static_cast<const device float*>(context.data);
  if (ALIBI) s -= slopes[context.head] * static_cast<float>(q > k ? q - k : k - q);
#else
  if (ALIBI) s -= static_cast<const float*>(context.data)[context.head] * static_cast<float>(q > k ? q - k : k - q);
#endif
  return s;
}
