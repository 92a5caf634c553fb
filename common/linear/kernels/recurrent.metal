// The recurrence as in linear.h, for one or a few tokens. The kernel has not run on Apple hardware yet.
//
// A threadgroup has 32 columns of the state, in registers. Simdgroup s has the 32 rows from 32 s on. Each of its lanes
// has these rows of one column. For each token a lane loads one element of q and of k, and broadcasts it to the other
// lanes of its simdgroup. The simdgroups store their parts of an output in threadgroup memory, and simdgroup 0 adds up
// the parts.
//
// Function constants: those of linear.h except CAUSAL and CHUNK. Threadgroup memory, in floats: [2][simdgroups][33],
// for a simdgroup's parts of 32 outputs and of the divisor. Tokens with even numbers use the first half, tokens with
// odd numbers the second half. Grid: (sequences, heads, groups of 32 columns); 32 threads for each 32 rows of the
// state. Accumulators of a lane: 33.
#include "common/linear/kernels/tokens_metal.h"

constexpr constant int PARTS = (HEAD_DIM + SIMD - 1) / SIMD, PART_FLOATS = SIMD + 1;

kernel void recurrent(constant LinearParams& p [[buffer(0)]], threadgroup float* memory [[threadgroup(0)]],
                      uint3 group [[threadgroup_position_in_grid]], uint lane_index [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const int sequence = static_cast<int>(group.x), head = static_cast<int>(group.y), lane = static_cast<int>(lane_index);
  const SequenceRows place = rows_of_sequence(lengths_of(p), sequence, 1);
  const Tokens tokens(p, place.batch, head, place.first);
  const long index = (static_cast<long>(sequence) * p.heads + head) * HEAD_DIM;
  const int first_row = static_cast<int>(simdgroup) * SIMD, own_row = first_row + lane;
  const int column = static_cast<int>(group.z) * SIMD + lane;
  const bool has_row = own_row < HEAD_DIM, has_column = column < VALUE_DIM;

  float state[SIMD], key_sum = 0;  // key_sum: of row `own_row`
  for (int i = 0; i < SIMD; ++i) {
    state[i] = 0;
    if (p.initial_state && has_column && first_row + i < HEAD_DIM) {
      state[i] = p.initial_state[(index + first_row + i) * VALUE_DIM + column];
    }
  }
  if (NORMALISED && p.initial_key_sum && has_row) key_sum = p.initial_key_sum[index + own_row];

  for (int token = 0; token < place.rows; ++token) {
    const float q = has_row ? tokens.q(token, own_row) : 0.0f, k = has_row ? tokens.k(token, own_row) : 0.0f;
    const float decay = GATE == GATE_NONE || !has_row ? 1.0f : power_of_e(tokens.decay(token, own_row));
    const float v = has_column ? tokens.v(token, column) : 0.0f;
    float o = 0, divisor = 0;
    UNROLL for (int i = 0; i < SIMD; ++i) {
      const ushort of = static_cast<ushort>(i);
      if (GATE != GATE_NONE) state[i] *= simd_shuffle(decay, of);
      state[i] += simd_shuffle(k, of) * v;
      o += simd_shuffle(q, of) * state[i];
    }
    if (NORMALISED) {
      key_sum = key_sum * decay + k;
      divisor = simd_sum(q * key_sum);
    }
    threadgroup float* const parts = memory + token % 2 * PARTS * PART_FLOATS;
    parts[static_cast<int>(simdgroup) * PART_FLOATS + lane] = o;
    if (lane == 0) parts[static_cast<int>(simdgroup) * PART_FLOATS + SIMD] = divisor;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup != 0) continue;
    o = 0;
    divisor = 0;
    for (int part = 0; part < PARTS; ++part) {
      o += parts[part * PART_FLOATS + lane];
      divisor += parts[part * PART_FLOATS + SIMD];
    }
    const float factor = !NORMALISED ? p.scale : divisor == 0 ? 0.0f : 1 / divisor;
    if (has_column) store_float<OUT_TYPE>(p.o, tokens.at(p.o_strides, token) + column, o * factor);
  }

  for (int i = 0; i < SIMD; ++i) {
    if (p.final_state && has_column && first_row + i < HEAD_DIM) {
      p.final_state[(index + first_row + i) * VALUE_DIM + column] = state[i];
    }
  }
  if (NORMALISED && p.final_key_sum && has_row && group.z == 0) p.final_key_sum[index + own_row] = key_sum;
}
