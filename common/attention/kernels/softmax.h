// What every attention kernel of the cpu dialect shares of the online softmax.
#pragma once

#include "common/attention/kernels/sink.h"
#include "common/kernel/base2.h"
#include "common/kernel/cpu.h"

/// Where the maximum of a row with a sink begins: the sink in base 2.
INLINE float first_maximum(const ScoreContext& context) {
  const float sink = log2_e * sink_logit(context);
  return sink > masked_score ? sink : masked_score;
}

/// 2^x for x <= 0 with a relative error of 2e-7, or of 8e-5 with DEGREE 3, for weights that are rounded to 16 bits
/// anyway; below -126 it gives 2^-126. Rounds x to the nearest integer by adding 1.5 * 2^23, takes a minimax polynomial
/// of the rest in [-1/2, 1/2] and adds the integer to the exponent.
template <int DEGREE = 5, typename V>
INLINE V exp2(V x) {
  static_assert(DEGREE == 3 || DEGREE == 5);
  constexpr int lanes = sizeof(V) / sizeof(float);
  constexpr float shifter = 12582912.0f;
  constexpr float smallest = -126.0f;
  x = x > smallest ? x : V{} + smallest;
  const V shifted = x + shifter;
  const V rest = x - (shifted - shifter);
  V power;
  if constexpr (DEGREE == 3) {
    power = rest * 5.51716691e-2f + 2.42611122e-1f;
    power = power * rest + 6.93260985e-1f;
    power = power * rest + 9.99928074e-1f;
  } else {
    power = rest * 1.32647271e-3f + 9.67151265e-3f;
    power = power * rest + 5.55073374e-2f;
    power = power * rest + 2.40222421e-1f;
    power = power * rest + 6.93146978e-1f;
    power = power * rest + 1.0f;
  }
  using Bits = Vector<int, lanes>;
  return reinterpret_cast<V>(reinterpret_cast<Bits>(power) + (reinterpret_cast<Bits>(shifted) << 23));
}
