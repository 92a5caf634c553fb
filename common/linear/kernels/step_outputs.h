// The cpu dialect of linear attention: outputs of steps (steps.h).
#pragma once

#include "common/linear/kernels/steps.h"

namespace {

template <int... I>
struct Lanes {};
template <int N, int... I>
constexpr auto lanes_of() {
  if constexpr (N == 0) {
    return Lanes<I...>();
  } else {
    return lanes_of<N - 1, N - 1, I...>();
  }
}

/// In each block of 2 * STAGE by 2 * STAGE elements, swaps the two off-diagonal blocks of STAGE by STAGE.
template <int STAGE, int... I>
INLINE void swap_blocks(Floats (&rows)[VECTOR_WIDTH], Lanes<I...>) {
  constexpr int N = VECTOR_WIDTH;
  UNROLL for (int r = 0; r < N; ++r) {
    if (r & STAGE) continue;
    const Floats a = rows[r], b = rows[r + STAGE];
    rows[r] = __builtin_shufflevector(a, b, (I & STAGE ? I - STAGE + N : I)...);
    rows[r + STAGE] = __builtin_shufflevector(a, b, (I & STAGE ? I + N : I + STAGE)...);
  }
}
template <int STAGE = VECTOR_WIDTH / 2>
INLINE void transpose(Floats (&rows)[VECTOR_WIDTH]) {
  if constexpr (STAGE > 0) {
    swap_blocks<STAGE>(rows, lanes_of<VECTOR_WIDTH>());
    transpose<STAGE / 2>(rows);
  }
}

INLINE float sum_of_lanes(Floats x) {
  float sum = 0;
  UNROLL for (int lane = 0; lane < VECTOR_WIDTH; ++lane) sum += x[lane];
  return sum;
}

/// For each of its rows, a register tile uses the scores of all keys that the tile's last row sees. So row i needs no
/// score of a key from i + REACH on.
constexpr int REACH = TILE_ROWS > TAIL_ROWS ? TILE_ROWS : TAIL_ROWS;

/// Steps with queries.
struct OutputSteps : Steps {
  using Steps::Steps;

  INLINE void load_queries(int first, int rows) {
    for (int i = 0; i < rows; ++i) {
      load_row<HEAD_DIM>(q + i * DIMS, p.q, q_row + (first + i) * p.q_strides.row);
      map(q + i * DIMS, scale);
    }
    ahead.add(p.q, q_row + (first + STEP) * p.q_strides.row, p.q_strides.row, HEAD_DIM, IN_TYPE);
    ahead.add(p.o, o_row + (first + STEP) * p.o_strides.row, p.o_strides.row, VALUE_DIM, OUT_TYPE, true);
  }

  /// Transposes keys to [DIMS][KEYS], with zeros after the last key, up to the end of its vector.
  INLINE void turn_keys(int rows) {
    for (int i = rows; i % VECTOR_WIDTH != 0; ++i) {
      for (int d = 0; d < DIMS; d += VECTOR_WIDTH) store(k + i * DIMS + d, Floats{});
    }
    for (int j = 0; j < rows; j += VECTOR_WIDTH) {
      for (int d = 0; d < DIMS; d += VECTOR_WIDTH) {
        Floats block[VECTOR_WIDTH];
        UNROLL for (int i = 0; i < VECTOR_WIDTH; ++i) block[i] = load<Floats>(k + (j + i) * DIMS + d);
        transpose(block);
        UNROLL for (int i = 0; i < VECTOR_WIDTH; ++i) store(turned + (d + i) * KEYS + j, block[i]);
      }
    }
  }

  static INLINE Vector<int, VECTOR_WIDTH> lane_numbers() {
    Vector<int, VECTOR_WIDTH> numbers = {};
    UNROLL for (int lane = 0; lane < VECTOR_WIDTH; ++lane) numbers[lane] = lane;
    return numbers;
  }

  /// Computes scores, which are zero beyond the diagonal, and prefix[i], the factor by which the state before the step
  /// has decayed at query i. With a gate by channel the queries are multiplied by this decay instead.
  INLINE void score(int rows) {
    if constexpr (GATE == GATE_CHANNEL) {
      float* const since = prefix;
      for (int d = 0; d < DIMS; d += VECTOR_WIDTH) store(since + d, Floats{} + 1);
      for (int i = 0; i < rows; ++i) {
        const float* const decay = decays + i * DIMS;
        float* const query = q + i * DIMS;
        for (int j = 0; j < KEYS && j < i + REACH; j += VECTOR_WIDTH) {
          if (j > i) {
            store(scores + i * KEYS + j, Floats{});
            continue;
          }
          const auto before = lane_numbers() < i - j;
          Floats sums[4] = {};
          for (int d = 0; d < HEAD_DIM; d += 4) {
            UNROLL for (int n = 0; n < 4; ++n) {
              float* const keys = turned + (d + n) * KEYS + j;
              const Floats decayed = load<Floats>(keys) * (before ? Floats{} + decay[d + n] : Floats{} + 1);
              store(keys, decayed);
              sums[n] += query[d + n] * decayed;
            }
          }
          const Floats sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
          store(scores + i * KEYS + j, lane_numbers() <= i - j ? sum : Floats{});
        }
        for (int d = 0; d < DIMS; d += VECTOR_WIDTH) {
          const Floats all = load<Floats>(since + d) * load<Floats>(decay + d);
          store(since + d, all);
          store(query + d, load<Floats>(query + d) * all);
        }
      }
    } else {
      product(scores, KEYS, nullptr, q, DIMS, 1, turned, KEYS, rows, KEYS, HEAD_DIM).run<false, true>();
      Floats since[KEYS / VECTOR_WIDTH] = {};
      float all = 1;
      for (int i = 0; i < rows; ++i) {
        if (GATE != GATE_NONE) all *= decays[i];
        prefix[i] = all;
        UNROLL for (int n = 0; n < KEYS / VECTOR_WIDTH; ++n) {
          float* const own = scores + i * KEYS + n * VECTOR_WIDTH;
          if (n * VECTOR_WIDTH >= i + REACH) break;
          const auto place = lane_numbers() + n * VECTOR_WIDTH;
          if constexpr (GATE == GATE_NONE) {
            store(own, place <= i ? load<Floats>(own) : Floats{});
          } else {
            since[n] = place == i ? Floats{} + 1 : since[n] * decays[i];
            store(own, place <= i ? load<Floats>(own) * since[n] : Floats{});
          }
        }
      }
    }
  }

  /// Writes the outputs of a step. Its queries, and if causal its scores and values, are already in threadgroup memory.
  INLINE void write_outputs(int first, int rows) {
    product(o, VALUES, nullptr, q, DIMS, 1, state, VALUES, rows, VALUES, HEAD_DIM).run<false, false>();
    if constexpr (CAUSAL) {
      if constexpr (GATE == GATE_CHANNEL) {  // the queries already have the decay
        for (int i = 0; i < rows; ++i) prefix[i] = 1;
      }
      product(o, VALUES, prefix, scores, KEYS, 1, v, VALUES, rows, VALUES, rows).run<true, false>();
    }
    constexpr int lanes = lanes_of_row<VALUE_DIM>;
    Vector<float, lanes> not_finite = {};
    float inverses[KEYS];
    for (int i = 0; i < rows; ++i) {
      float inverse = 1;
      if constexpr (NORMALISED) {
        Floats sum = {};
        for (int d = 0; d < DIMS; d += VECTOR_WIDTH) sum += load<Floats>(q + i * DIMS + d) * load<Floats>(key_sum + d);
        float divisor = sum_of_lanes(sum);
        if constexpr (CAUSAL) {
          divisor *= prefix[i];
          Floats weights = {};
          for (int j = 0; j <= i; j += VECTOR_WIDTH) weights += load<Floats>(scores + i * KEYS + j);
          divisor += sum_of_lanes(weights);
        }
        inverse = divisor != 0 ? 1 / divisor : 0;
      }
      inverses[i] = inverse;
      const long long row = o_row + (first + i) * p.o_strides.row;
      for (int e = 0; e < VALUE_DIM; e += lanes) {
        const auto values = load<Vector<float, lanes>>(o + i * VALUES + e) * inverse;
        store_floats<OUT_TYPE, lanes>(p.o, row + e, values);
        not_finite += values * 0.0f;
      }
    }
    // Calls repair() on a copy, so that the compiler may keep the members of this object in registers.
    if (CAUSAL && any_lane(not_finite != 0)) OutputSteps(*this).repair(first, rows, inverses);
  }

  /// A register tile multiplies values of tokens after a query by scores of 0. The query's output is wrong if such a
  /// value is infinite or NaN. repair() computes the outputs of these queries again.
  NOINLINE void repair(int first, int rows, const float* inverses) const {
    for (int i = 0; i < rows; ++i) {
      float later = 0;
      for (int j = i + 1; j < rows && j < i + REACH; ++j) {
        for (int e = 0; e < VALUE_DIM; ++e) later += v[j * VALUES + e] * 0;
      }
      for (int e = 0; later != 0 && e < VALUE_DIM; ++e) {
        float sum = 0;
        for (int d = 0; d < HEAD_DIM; ++d) sum += q[i * DIMS + d] * state[d * VALUES + e];
        sum *= prefix[i];
        for (int j = 0; j <= i; ++j) sum += scores[i * KEYS + j] * v[j * VALUES + e];
        store_float<OUT_TYPE>(p.o, o_row + (first + i) * p.o_strides.row + e, sum * inverses[i]);
      }
    }
  }

  /// Writes the outputs of the step's rows. If causal, loads the inputs of update() too, but does not change the state.
  INLINE void run(int first, int rows) {
    ahead.tensors = 0;
    load_queries(first, rows);
    if constexpr (CAUSAL) load_keys(first, rows);
    ahead.begin(STEP);
    if constexpr (CAUSAL) {
      load_decays(first, rows);
      turn_keys(rows);
      score(rows);
    }
    write_outputs(first, rows);
  }
};

}  // namespace
