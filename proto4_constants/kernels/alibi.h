// A score hook with a flag: ALIBI=1 takes a head's slope times the distance of query and key off the score (Press et
// al. 2022), ALIBI=0 leaves it as it is. data: slopes [q_heads], f32.
#pragma once

#define SCORE_IS_IDENTITY (!ALIBI)

static inline float score(float s, int /*batch*/, int head, int q, int k, const void* data) {
  if (ALIBI) s -= static_cast<const float*>(data)[head] * static_cast<float>(q > k ? q - k : k - q);
  return s;
}
