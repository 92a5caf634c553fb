// RoPE's rotation of rows, for rotate hooks. Constants: ROTARY_DIM (a multiple of 8), INTERLEAVED (1: pair i is
// elements 2i and 2i + 1; 0: elements i and i + ROTARY_DIM / 2). Rotated elements are rounded to the type of Q and K,
// as in the kernel rope_rotate.
#pragma once

#ifdef __METAL_VERSION__
#include "common/attention/kernels/modifiers/turned_metal.h"
#else
#ifdef __CUDACC__
#include "common/kernel/cuda.h"
#else
#include "common/kernel/cpu.h"
#endif

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
  float place;  // has room for an element of any type
  store_float<IN_TYPE>(&place, 0, x);
  return load_float<IN_TYPE>(&place, 0);
}

/// A table of cosines or of sines, float [keys, ROTARY_DIM / 2]. at(i) gives the elements from element i on.
struct AngleTable {
  const char* begin;
  int offset;  // in bytes
  template <typename Angles>
  Angles at(int i) const {
    return *reinterpret_cast<const Angles*>(begin + (offset + i * 4));
  }
};

// Returns the rotated elements from d on, as many as load(d) returns. `key` is the number of the key at the row's
// position.
template <typename Load>
static inline auto turned(Load load, int key, int d, const AngleTable& cosine_table, const AngleTable& sine_table) {
  auto turned = load(d);
  if (d < ROTARY_DIM) {
    constexpr int half = rotate_half, count = sizeof turned / sizeof(float);
    auto other = load(INTERLEAVED && count == 1 ? d ^ 1 : rotate_partner(d));
    float* const x = reinterpret_cast<float*>(&turned);
    const float* const y = reinterpret_cast<const float*>(&other);
    // The cosines or the sines of all these pairs, loaded at once.
    constexpr int pairs = INTERLEAVED && count > 1 ? count / 2 : count;
    struct alignas(pairs * sizeof(float)) Angles {
      float of[pairs];
    };
    const int at = key * half + (INTERLEAVED ? d / 2 : d % half);
    const Angles cosines = cosine_table.at<Angles>(at), sines = sine_table.at<Angles>(at);
    UNROLL for (int i = 0; i < count; ++i) {
      const bool second = INTERLEAVED ? (d + i) % 2 != 0 : d >= half;
      const int pair = i * pairs / count;
      const float partner = y[INTERLEAVED && count > 1 ? i ^ 1 : i];
      x[i] = rounded(x[i] * cosines.of[pair] + (second ? partner : -partner) * sines.of[pair]);
    }
  }
  return turned;
}
#endif
