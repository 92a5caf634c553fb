// RoPE's rotation of a row of floats on the cpu. Constants: ROTARY_DIM, INTERLEAVED (append_scaled.h).
#pragma once

#include "common/kernel/cpu.h"
#include "common/paged/kernels/decode.h"

/// Rotates the pairs of `row` by the angles of a position.
INLINE void turn(float* row, const NewTokens& tokens, int position) {
  constexpr int half = ROTARY_DIM / 2;
  const float* const cosines = tokens.cosines + static_cast<long long>(position) * half;
  const float* const sines = tokens.sines + static_cast<long long>(position) * half;
  VECTORIZE for (int i = 0; i < half; ++i) {
    float &x = row[INTERLEAVED ? 2 * i : i], &y = row[INTERLEAVED ? 2 * i + 1 : half + i];
    const float turned = x * cosines[i] - y * sines[i];
    y = y * cosines[i] + x * sines[i];
    x = turned;
  }
}
