// The inputs of linear attention, in the Metal dialect: q and k after the feature map, v, and logarithms of decays.
//
// Function constants: HEAD_DIM, VALUE_DIM, GATE, IN_TYPE. This file includes the feature map, which may be included
// only once.
#pragma once

#include "common/kernel/base2.h"
#include "common/kernel/metal.h"
#include "common/linear/kernels/feature.h"
#include "common/linear/kernels/linear.h"

/// Copies from constant memory to the thread's memory: the members that place_of_chunk() and rows_of_sequence() read.
INLINE LinearParams lengths_of(constant LinearParams& p) {
  LinearParams lengths = {};
  lengths.starts = p.starts;
  lengths.sequences = p.sequences;
  lengths.tokens = p.tokens;
  return lengths;
}

INLINE float power_of_e(float x) { return fast::exp2(x * log2_e); }

/// Tokens of one sequence and head. Token 0 is row `first` of the batch.
struct Tokens {
  constant LinearParams& p;
  const int batch, head, first;

  Tokens(constant LinearParams& params, int of_batch, int of_head, int first_row)
      : p(params), batch(of_batch), head(of_head), first(first_row) {}

  long at(constant TensorStrides& strides, int token) const {
    return batch * strides.batch + head * strides.head + (first + token) * strides.row;
  }
  float q(int token, int d) const {
    return feature(load_float<IN_TYPE>(p.q, at(p.q_strides, token) + d), p.feature_data);
  }
  float k(int token, int d) const {
    return feature(load_float<IN_TYPE>(p.k, at(p.k_strides, token) + d), p.feature_data);
  }
  float v(int token, int e) const { return load_float<IN_TYPE>(p.v, at(p.v_strides, token) + e); }
  /// Returns the logarithm of the factor by which a token decays row d of the state. For a factor of 0 the result is
  /// -1e30 in place of -infinity.
  float decay(int token, int d) const {
    if (GATE == GATE_NONE) return 0;
    const float log =
        GATE == GATE_HEAD ? p.gate[head] : p.gate[at(p.gate_strides, token) + (GATE == GATE_CHANNEL ? d : 0)];
    return is_minus_infinity(log) ? -1.0e30f : log;
  }
};
