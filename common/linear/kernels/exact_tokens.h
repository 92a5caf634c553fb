// Computes results of a chunk by the definition in linear.h, token by token, for cuda kernels. A matrix product
// multiplies the values of later tokens by scores of 0; the product is NaN if such a value is infinite or NaN. With f32
// inputs a kernel splits each number into the sum of two numbers of tf32 (multiply_add_exactly). For an infinity this
// sum is NaN. In both cases the result is not finite, and the kernel computes the result again with ExactTokens.
//
// Function constants: HEAD_DIM, GATE, IN_TYPE. This file includes the feature map, which may be included only once.
#pragma once

#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"
#include "common/linear/kernels/feature.h"
#include "common/linear/kernels/linear.h"

/// `zeros` is a lane's sum of 0 times its results. Returns whether this sum is not 0 in some lane. If so, some result
/// is not finite. All lanes of a warp call this function.
DEVICE bool some_not_finite(float zeros) { return __any_sync(~0u, !(zeros == 0)); }

struct ExactTokens {
  const LinearParams& p;
  const int batch, head;
  const long long first;  // the row of token 0 in the batch

  DEVICE long long at(const TensorStrides& strides, int token) const {
    return batch * strides.batch + head * strides.head + (first + token) * strides.row;
  }
  DEVICE float mapped(const void* tensor, const TensorStrides& strides, int token, int d) const {
    return feature(load_float<IN_TYPE>(tensor, at(strides, token) + d), p.feature_data);
  }
  DEVICE float value(int token, int column) const { return load_float<IN_TYPE>(p.v, at(p.v_strides, token) + column); }
  /// Returns the logarithm, in base 2, of the factor by which a token decays row d of the state.
  DEVICE float decay(int token, int d) const {
    if constexpr (GATE == GATE_NONE) return 0;
    if constexpr (GATE == GATE_HEAD) return p.gate[head] * log2_e;
    return p.gate[at(p.gate_strides, token) + (GATE == GATE_CHANNEL ? d : 0)] * log2_e;
  }

  /// Returns the number that tokens 0 to `count` - 1 add to element (d, column) of the state.
  DEVICE float added(int count, int d, int column) const {
    float sum = 0, since = 0;
#pragma unroll 1
    for (int token = count - 1; token >= 0; --token) {
      sum += mapped(p.k, p.k_strides, token, d) * exp2_approx(since) * value(token, column);
      since += decay(token, d);
    }
    return sum;
  }

  /// Multiplies f(q) of token `of_query` by the state after tokens 0 to `count` - 1, without scale or divisor.
  /// state(d, column) is the state before token 0. All lanes of a warp call this function. A lane gets the columns
  /// first_column + lane + 32 c below `columns`; o[c] is the result of the c-th of these columns.
  template <int COLUMNS, typename State>
  DEVICE void outputs(int of_query, int count, int first_column, int columns, State state, float (&o)[COLUMNS]) const {
    constexpr int DIMS = (HEAD_DIM + WARP - 1) / WARP;  // rows of the state of a lane
    const int lane = threadIdx.x % WARP;
    float since[GATE == GATE_CHANNEL ? DIMS : 1] = {};
    const auto query = [&](int d, int i) {
      return mapped(p.q, p.q_strides, of_query, d) * exp2_approx(since[GATE == GATE_CHANNEL ? i : 0]);
    };
    UNROLL for (int c = 0; c < COLUMNS; ++c) o[c] = 0;
#pragma unroll 1
    for (int token = count - 1; token >= 0; --token) {
      float score = 0;
#pragma unroll(GATE == GATE_CHANNEL ? DIMS : 1)
      for (int i = 0; i < DIMS; ++i) {
        const int d = lane + i * WARP;
        if (d < HEAD_DIM) score += query(d, i) * mapped(p.k, p.k_strides, token, d);
      }
      UNROLL for (int i = 0; i < sizeof(since) / 4; ++i) since[i] +=
          decay(token, min(lane + i * WARP, static_cast<int>(HEAD_DIM) - 1));
      UNROLL for (int step = WARP / 2; step > 0; step /= 2) score += __shfl_xor_sync(~0u, score, step);
      UNROLL for (int c = 0; c < COLUMNS; ++c) {
        const int column = first_column + lane + c * WARP;
        if (column < columns) o[c] += score * value(token, column);
      }
    }
#pragma unroll(GATE == GATE_CHANNEL ? DIMS : 1)
    for (int i = 0; i < DIMS; ++i) {
      const float own = query(min(lane + i * WARP, static_cast<int>(HEAD_DIM) - 1), i);
#pragma unroll 1
      for (int other = 0; other < WARP && i * WARP + other < HEAD_DIM; ++other) {
        const float its = __shfl_sync(~0u, own, other);
        UNROLL for (int c = 0; c < COLUMNS; ++c) {
          const int column = first_column + lane + c * WARP;
          if (column < columns) o[c] += its * state(i * WARP + other, column);
        }
      }
    }
  }
};
