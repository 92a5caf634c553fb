// turned.h in the Metal dialect: RoPE's rotation of rows, an element at a time.
#pragma once

#include "common/kernel/metal.h"

INLINE float rounded(float x) { return static_cast<float>(static_cast<typename ElementOf<IN_TYPE>::type>(x)); }

/// A table of cosines or of sines, float [keys, ROTARY_DIM / 2]; `offset` is in bytes.
struct AngleTable {
  const device char* begin;
  int offset;
  float at(int i) const { return *reinterpret_cast<const device float*>(begin + offset + i * 4); }
};

// Returns element d of the row, rotated. `key` is the number of the key at the row's position.
template <typename Load>
INLINE float turned(Load load, int key, int d, AngleTable cosines, AngleTable sines) {
  if (d >= ROTARY_DIM) return load(d);
  const int pairs = ROTARY_DIM / 2, pair = INTERLEAVED ? d / 2 : d % pairs;
  const bool second = INTERLEAVED ? d % 2 != 0 : d >= pairs;
  const float partner = load(INTERLEAVED ? d ^ 1 : second ? d - pairs : d + pairs);
  const int at = key * pairs + pair;
  return rounded(load(d) * cosines.at(at) + (second ? partner : -partner) * sines.at(at));
}
