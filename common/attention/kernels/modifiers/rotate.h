// RoPE on the way in: Q, and with ROTATE_KEYS also K, are turned by the angles of their positions. The last query
// stands at the last key. Constants: ROTARY_DIM (a multiple of 8), INTERLEAVED (pairs are (2i, 2i + 1), else (i, i +
// ROTARY_DIM / 2)), ROTATE_KEYS. What is turned is rounded to the type of Q and K, as a launch before the kernel does.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/modifiers/modifiers.h"
#ifdef __CUDACC__
#include "common/kernel/cuda.h"
#else
#include "common/kernel/cpu.h"
#endif

#define ROTATE_IS_IDENTITY 0
#define ROTATE_LEAVES_KEYS (ROTATE_KEYS == 0)

constexpr int rotate_half = ROTARY_DIM / 2;
static constexpr int rotate_units() { return (INTERLEAVED ? HEAD_DIM : HEAD_DIM - rotate_half) / 4; }
static constexpr int rotate_unit(int number) {
  const int d = 4 * number;
  return INTERLEAVED || d < rotate_half ? d : d + rotate_half;
}
static constexpr int rotate_partner(int d) {
  return INTERLEAVED || d >= ROTARY_DIM ? d : d < rotate_half ? d + rotate_half : d - rotate_half;
}

static inline float rounded(float x) {
  float place;  // of as many bytes as the type has
  store_float<IN_TYPE>(&place, 0, x);
  return load_float<IN_TYPE>(&place, 0);
}

// The row's elements from d on, turned; `key` is the key at the row's position.
template <typename Load>
static inline auto turned(Load load, int key, int d, const ScoreContext& context) {
  auto turned = load(d);
  if (d < ROTARY_DIM) {
    constexpr int half = rotate_half, count = sizeof turned / sizeof(float);
    auto other = load(INTERLEAVED && count == 1 ? d ^ 1 : rotate_partner(d));
    float* const x = reinterpret_cast<float*>(&turned);
    const float* const y = reinterpret_cast<const float*>(&other);
    // As many as there are pairs, loaded at once.
    constexpr int pairs = INTERLEAVED && count > 1 ? count / 2 : count;
    struct alignas(pairs * sizeof(float)) Angles {
      float of[pairs];
    };
    const int at = key * half + (INTERLEAVED ? d / 2 : d % half);
    const Angles cosines = *table_at<Angles>(context, modifiers_of(context).cosines + at * 4);
    const Angles sines = *table_at<Angles>(context, modifiers_of(context).sines + at * 4);
    for (int i = 0; i < count; ++i) {
      const bool second = INTERLEAVED ? (d + i) % 2 != 0 : d >= half;
      const int pair = i * pairs / count;
      const float partner = y[INTERLEAVED && count > 1 ? i ^ 1 : i];
      x[i] = rounded(x[i] * cosines.of[pair] + (second ? partner : -partner) * sines.of[pair]);
    }
  }
  return turned;
}

template <typename Load>
static inline auto rotate_query(Load load, int q, int d, const ScoreContext& context) {
  return turned(load, q + context.kv_len - context.q_len, d, context);
}
template <typename Load>
static inline auto rotate_key(Load load, int key, int d, const ScoreContext& context) {
  if constexpr (ROTATE_LEAVES_KEYS) {
    return load(d);
  } else {
    return turned(load, key, d, context);
  }
}
