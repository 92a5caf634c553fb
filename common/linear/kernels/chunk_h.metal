// Computes what each chunk adds to the state (linear.h), decayed to the chunk's end, with simdgroup matrices of f32.
// The kernel has not run on Apple hardware yet.
//
// A simdgroup has 8 rows of the state at a time, in registers. Tokens come to threadgroup memory in steps, from the
// chunk's last token to its first. Thread d copies element d of each key, and multiplies the element by the decay from
// the token to the chunk's end.
//
// Threadgroup memory: MetalChunkLayout. Grid: (chunk numbers, heads); metal_linear_threads threads. Accumulators of a
// lane: VALUE_DIM / 4, so at most 64 registers.
#include "common/linear/kernels/phases_metal.h"
#include "common/linear/kernels/tokens_metal.h"

typedef simdgroup_matrix<float, 8, 8> Matrix;

constexpr constant int STEP = MetalChunkLayout(HEAD_DIM, VALUE_DIM).step;
constexpr constant int KEY_ROW = MetalChunkLayout(HEAD_DIM, VALUE_DIM).key_row;
constexpr constant int VALUE_ROW = MetalChunkLayout(HEAD_DIM, VALUE_DIM).value_row;
constexpr constant int VALUES = MetalChunkLayout(HEAD_DIM, VALUE_DIM).values;
constexpr constant int SIMDGROUPS = metal_linear_threads / SIMD, COLUMNS = VALUE_DIM / 8;

kernel void chunk_h(constant ChunkParams& p [[buffer(0)]], threadgroup float* keys [[threadgroup(0)]],
                    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const int number = static_cast<int>(group.x), head = static_cast<int>(group.y);
  const ChunkPlace place = place_of_chunk(lengths_of(p), number, CHUNK);
  if (place.rows == 0) return;
  const Tokens tokens(p, place.batch, head, place.first);
  threadgroup float* const values = keys + VALUES;
  const int thread_number = static_cast<int>(thread_index);
  const long index = state_index(number, p.heads, head);

  for (int first_row = 0; first_row < HEAD_DIM; first_row += SIMDGROUPS * 8) {
    const int row = first_row + static_cast<int>(simdgroup) * 8;  // the simdgroup's first row
    Matrix sums[COLUMNS];
    UNROLL for (int e = 0; e < COLUMNS; ++e) sums[e] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    float since = 0, key_sum = 0;  // of row `thread_number` of the state
    for (int end = (place.rows + STEP - 1) / STEP * STEP; end > 0; end -= STEP) {
      threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups have read the previous step
      for (int i = STEP - 1; i >= 0 && thread_number < HEAD_DIM; --i) {
        const int token = end - STEP + i;
        float key = 0;
        if (token < place.rows) {
          key = tokens.k(token, thread_number) * power_of_e(since);
          since += tokens.decay(token, thread_number);
          key_sum += key;
        }
        keys[i * KEY_ROW + thread_number] = key;
      }
      for (int i = 0; i < STEP && thread_number < VALUE_DIM; ++i) {
        const int token = end - STEP + i;
        values[i * VALUE_ROW + thread_number] = token < place.rows ? tokens.v(token, thread_number) : 0.0f;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (row >= HEAD_DIM) continue;
      for (int i = 0; i < STEP; i += 8) {
        Matrix key;
        simdgroup_load(key, keys + i * KEY_ROW + row, KEY_ROW, ulong2(0, 0), true);
        UNROLL for (int e = 0; e < COLUMNS; ++e) {
          Matrix value;
          simdgroup_load(value, values + i * VALUE_ROW + e * 8, VALUE_ROW);
          simdgroup_multiply_accumulate(sums[e], key, value, sums[e]);
        }
      }
    }
    if (row < HEAD_DIM) {
      UNROLL for (int e = 0; e < COLUMNS; ++e) {
        simdgroup_store(sums[e], p.states + (index * HEAD_DIM + row) * VALUE_DIM + e * 8, VALUE_DIM);
      }
    }
    if (first_row == 0 && thread_number < HEAD_DIM) {
      if (NORMALISED) p.key_sums[index * HEAD_DIM + thread_number] = key_sum;
      if (GATE == GATE_CHANNEL) p.decays[index * HEAD_DIM + thread_number] = since;
      if (GATE != GATE_NONE && GATE != GATE_CHANNEL && thread_number == 0) p.decays[index] = since;
    }
  }
}
