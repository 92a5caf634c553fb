// The outputs of a group of 8 tokens of a chunk, in the Metal dialect, with simdgroup matrices of f32.
//
// A simdgroup computes the 8 tokens, and waits for no other simdgroup. Its lanes load their elements of q, k and v
// straight from device memory (fragment_row() in common/kernel/metal.h). The simdgroup takes groups of 8 keys, from its
// own group back to the chunk's first group, and then the state before the chunk. For an earlier group the decay from a
// key to a query has two factors. The key is multiplied by the decay from itself to the end of its group, and the query
// by the decay from there to itself (`since`). So no factor is above 1. In its own group each query takes the keys up
// to itself one by one. A product of matrices would multiply later values by 0, and the product is NaN if such a value
// is not finite.
//
// Function constants: the constants of tokens_metal.h, CAUSAL, NORMALISED, OUT_TYPE. A lane has COLUMNS * 2
// accumulators (COLUMNS of write_outputs()), and with GATE_CHANNEL HEAD_DIM / 4 floats of Since.
#pragma once

#include "common/linear/kernels/tokens_metal.h"

typedef simdgroup_matrix<float, 8, 8> Matrix;

constexpr constant int STEPS = HEAD_DIM / 8;
constexpr constant bool BY_CHANNEL = GATE == GATE_CHANNEL;
constexpr constant int SINCE = BY_CHANNEL ? STEPS * 2 : 1;

/// The logarithms of the decays by which a lane multiplies its elements of q: from the end of a group of keys to the
/// query, or from the chunk's start to the query.
struct Since {
  float logs[SINCE];

  /// Adds the logarithms of the decays of tokens `from` to `to` - 1.
  void add(thread const Tokens& tokens, int from, int to, int column) {
    for (int token = from; token < to; ++token) {
      for (int i = 0; i < SINCE; ++i) logs[i] += tokens.decay(token, i / 2 * 8 + column + i % 2);
    }
  }
  float factor(int step, int i) const {
    return GATE == GATE_NONE ? 1.0f : power_of_e(logs[BY_CHANNEL ? step * 2 + i : 0]);
  }
};

/// Writes the outputs of tokens `first` to `first` + 7 of a chunk of `rows` tokens, which begins at token 0 of
/// `tokens`, in COLUMNS * 8 columns from `first_column` on. Tokens from `rows` on and columns from VALUE_DIM on are
/// left out. `state` is the state before the chunk, from column `first_column` on; without CAUSAL it is the state after
/// the last token.
template <int COLUMNS, typename State, typename KeySums>
INLINE void write_outputs(thread const Tokens& tokens, int rows, int first, int first_column, State state,
                          int state_row, KeySums key_sums, uint lane) {
  const int row = fragment_row(lane), column = fragment_column(lane);
  const int columns = min(COLUMNS, (static_cast<int>(VALUE_DIM) - first_column) / 8);
  const int token = first + row;
  const bool there = token < rows;
  Matrix o[COLUMNS];
  UNROLL for (int e = 0; e < COLUMNS; ++e) o[e] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  Since since;
  for (int i = 0; i < SINCE; ++i) since.logs[i] = 0;
  float divisor = 0;  // the lane's part of the row's divisor

  if (CAUSAL) {
    // The token's own group: decayed scores of its keys `column` and `column` + 1.
    float scores[2];
    for (int i = 0; i < 2; ++i) {
      const int other = first + column + i;
      scores[i] = 0;
      if (!there || other > token) continue;
      float log = 0;
      for (int between = other + 1; between <= token && !BY_CHANNEL; ++between) log += tokens.decay(between, 0);
      for (int d = 0; d < HEAD_DIM; ++d) {
        float factor = 1;
        if (BY_CHANNEL) {
          float of_channel = 0;
          for (int between = other + 1; between <= token; ++between) of_channel += tokens.decay(between, d);
          factor = power_of_e(of_channel);
        }
        scores[i] += tokens.q(token, d) * tokens.k(other, d) * factor;
      }
      if (!BY_CHANNEL && GATE != GATE_NONE) scores[i] *= power_of_e(log);
      divisor += scores[i];
    }
    for (int other = 0; other < 8; ++other) {
      // The lane that holds this row's score of key first + other: the inverse of fragment_row() and fragment_column().
      const uint holder = (lane & 0x16u) | static_cast<uint>(other / 4 * 8 + other % 4 / 2);
      const float score = simd_shuffle(scores[other % 2], static_cast<ushort>(holder));
      if (!there || first + other > token) continue;
      UNROLL for (int e = 0; e < COLUMNS; ++e) {
        if (e >= columns) continue;
        UNROLL for (int i = 0; i < 2; ++i) {
          o[e].thread_elements()[i] += score * tokens.v(first + other, first_column + e * 8 + column + i);
        }
      }
    }
    if (there) since.add(tokens, first, token + 1, column);

    // Earlier groups. All their tokens exist, and none is masked.
    for (int before = first - 8; before >= 0; before -= 8) {
      Matrix s = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      float key_logs[2] = {0, 0};  // unless BY_CHANNEL: of keys `column` and `column` + 1
      for (int i = 0; i < 2 && !BY_CHANNEL; ++i) {
        for (int after = before + column + i + 1; after < before + 8; ++after) key_logs[i] += tokens.decay(after, 0);
      }
      for (int t = 0; t < STEPS; ++t) {
        Matrix q, k;
        for (int i = 0; i < 2; ++i) {
          q.thread_elements()[i] = there ? tokens.q(token, t * 8 + column + i) * since.factor(t, i) : 0.0f;
          const int d = t * 8 + row;
          float log = key_logs[i];
          for (int after = before + column + i + 1; after < before + 8 && BY_CHANNEL; ++after) {
            log += tokens.decay(after, d);
          }
          k.thread_elements()[i] = tokens.k(before + column + i, d) * (GATE == GATE_NONE ? 1.0f : power_of_e(log));
        }
        simdgroup_multiply_accumulate(s, q, k, s);
      }
      divisor += s.thread_elements()[0] + s.thread_elements()[1];
      UNROLL for (int e = 0; e < COLUMNS; ++e) {
        if (e >= columns) continue;
        Matrix v;
        for (int i = 0; i < 2; ++i) v.thread_elements()[i] = tokens.v(before + row, first_column + e * 8 + column + i);
        simdgroup_multiply_accumulate(o[e], s, v, o[e]);
      }
      if (there) since.add(tokens, before, before + 8, column);
    }
  }

  for (int t = 0; t < STEPS; ++t) {
    Matrix q;
    for (int i = 0; i < 2; ++i) {
      const int d = t * 8 + column + i;
      const float element = there ? tokens.q(token, d) * since.factor(t, i) : 0.0f;
      q.thread_elements()[i] = element;
      if (NORMALISED) divisor += element * key_sums[d];
    }
    UNROLL for (int e = 0; e < COLUMNS; ++e) {
      if (e >= columns) continue;
      Matrix of_state;
      simdgroup_load(of_state, state + t * 8 * state_row + e * 8, static_cast<ulong>(state_row));
      simdgroup_multiply_accumulate(o[e], q, of_state, o[e]);
    }
  }

  divisor = sum_of_row(divisor);
  const float factor = !NORMALISED ? tokens.p.scale : divisor == 0 ? 0.0f : 1 / divisor;
  if (!there) return;
  UNROLL for (int e = 0; e < COLUMNS; ++e) {
    if (e >= columns) continue;
    UNROLL for (int i = 0; i < 2; ++i) {
      store_float<OUT_TYPE>(tokens.p.o, tokens.at(tokens.p.o_strides, token) + first_column + e * 8 + column + i,
                            o[e].thread_elements()[i] * factor);
    }
  }
}
