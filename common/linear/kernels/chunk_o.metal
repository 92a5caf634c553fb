// Computes the outputs of each chunk from the state before the chunk (linear.h), with simdgroup matrices of f32. The
// kernel has not run on Apple hardware yet.
//
// A simdgroup has 8 queries at a time, and no simdgroup waits for another. Each lane loads its elements of operands
// straight from device memory (fragment_row() in common/kernel/metal.h). The simdgroup walks groups of 8 keys, from the
// group of its own tokens back to the chunk's first group, and then takes the state before the chunk. `since` has the
// logarithms of the decays from the end of a group of keys to the lane's query. A query is multiplied by the decay from
// the end of the group to the query, and a key by the decay from the key to the end of the group, so no factor is above
// 1. In the group of its own tokens a query adds the values up to its own token one by one, so a later token's value
// does not count even if it is infinite or NaN.
//
// Function constants: those of linear.h. No threadgroup memory. Grid: (chunk numbers, heads); metal_linear_threads
// threads. Accumulators a lane: VALUE_DIM / 4, and with GATE_CHANNEL HEAD_DIM / 4 of `since`: at most 128 registers, 64
// at 128 x 128.
#include "common/linear/kernels/phases_metal.h"
#include "common/linear/kernels/tokens_metal.h"

typedef simdgroup_matrix<float, 8, 8> Matrix;

constexpr constant int SIMDGROUPS = metal_linear_threads / SIMD, COLUMNS = VALUE_DIM / 8, STEPS = HEAD_DIM / 8;
constexpr constant bool BY_CHANNEL = GATE == GATE_CHANNEL;
constexpr constant int SINCE = BY_CHANNEL ? STEPS * 2 : 1;

/// The logarithms of the decays by which a lane multiplies its elements of q.
struct Since {
  float logs[SINCE];

  /// Adds the decays of tokens `from` to `to` - 1.
  void add(thread const Tokens& tokens, int from, int to, int column) {
    for (int token = from; token < to; ++token) {
      for (int i = 0; i < SINCE; ++i) logs[i] += tokens.decay(token, i / 2 * 8 + column + i % 2);
    }
  }
  float factor(int step, int i) const {
    return GATE == GATE_NONE ? 1.0f : power_of_e(logs[BY_CHANNEL ? step * 2 + i : 0]);
  }
};

kernel void chunk_o(constant ChunkParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const int number = static_cast<int>(group.x), head = static_cast<int>(group.y);
  const ChunkPlace place = place_of_chunk(lengths_of(p), number, CHUNK);
  const Tokens tokens(p, place.batch, head, place.first);
  const int row = fragment_row(lane), column = fragment_column(lane);
  const long index = state_index(CAUSAL ? number : place.first_chunk, p.heads, head);
  const device float* const state = p.states + index * HEAD_DIM * VALUE_DIM;

  for (int first = static_cast<int>(simdgroup) * 8; first < place.rows; first += SIMDGROUPS * 8) {
    const int token = first + row;
    const bool there = token < place.rows;
    Matrix o[COLUMNS];
    UNROLL for (int e = 0; e < COLUMNS; ++e) o[e] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    Since since;
    for (int i = 0; i < SINCE; ++i) since.logs[i] = 0;
    float divisor = 0;  // the lane's part

    if (CAUSAL) {
      // The token's own group: the decayed scores of keys `column` and `column` + 1.
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
        // The lane that holds this row's score of key `other`: the inverse of fragment_row() and fragment_column().
        const uint holder = (lane & 0x16u) | static_cast<uint>(other / 4 * 8 + other % 4 / 2);
        const float score = simd_shuffle(scores[other % 2], static_cast<ushort>(holder));
        if (!there || first + other > token) continue;
        UNROLL for (int e = 0; e < COLUMNS; ++e) {
          UNROLL for (int i = 0; i < 2; ++i) {
            o[e].thread_elements()[i] += score * tokens.v(first + other, e * 8 + column + i);
          }
        }
      }
      if (there) since.add(tokens, first, token + 1, column);

      // The earlier groups. All tokens of these groups exist, and every query sees them.
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
          Matrix v;
          for (int i = 0; i < 2; ++i) v.thread_elements()[i] = tokens.v(before + row, e * 8 + column + i);
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
        if (NORMALISED) divisor += element * p.key_sums[index * HEAD_DIM + d];
      }
      UNROLL for (int e = 0; e < COLUMNS; ++e) {
        Matrix rows;
        simdgroup_load(rows, state + t * 8 * VALUE_DIM + e * 8, VALUE_DIM);
        simdgroup_multiply_accumulate(o[e], q, rows, o[e]);
      }
    }

    divisor = sum_of_row(divisor);
    const float factor = !NORMALISED ? p.scale : divisor == 0 ? 0.0f : 1 / divisor;
    if (!there) continue;
    UNROLL for (int e = 0; e < COLUMNS; ++e) {
      UNROLL for (int i = 0; i < 2; ++i) {
        store_float<OUT_TYPE>(p.o, tokens.at(p.o_strides, token) + e * 8 + column + i,
                              o[e].thread_elements()[i] * factor);
      }
    }
  }
}
