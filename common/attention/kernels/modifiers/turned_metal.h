// turned.h in the Metal dialect, an element at a time.
#pragma once

#include "common/attention/kernels/exact_row_metal.h"

INLINE float rounded(float x) { return static_cast<float>(static_cast<typename ElementOf<IN_TYPE>::type>(x)); }

/// A table of cosines or of sines, float [keys, ROTARY_DIM / 2]; `offset` is in bytes.
struct AngleTable {
  const device char* begin;
  int offset;
  float at(int i) const { return *reinterpret_cast<const device float*>(begin + offset + i * 4); }
};

// Returns element d of the row, rotated. Elements need not be finite. `key` is the number of the key at the row's
// position.
template <typename Load>
INLINE float turned(Load load, int key, int d, AngleTable cosines, AngleTable sines) {
  if (d >= ROTARY_DIM) return load(d);
  const int pairs = ROTARY_DIM / 2, pair = INTERLEAVED ? d / 2 : d % pairs;
  const bool second = INTERLEAVED ? d % 2 != 0 : d >= pairs;
  const float partner = load(INTERLEAVED ? d ^ 1 : second ? d - pairs : d + pairs);
  const int at = key * pairs + pair;
  Dot dot;
  dot.add(load(d), cosines.at(at));
  dot.add(partner, second ? sines.at(at) : -sines.at(at));
  return rounded(dot.times(1));
}
