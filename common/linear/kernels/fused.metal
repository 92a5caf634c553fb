// Linear attention in one pass (linear.h): the state stays in threadgroup memory. The kernel has not run on Apple
// hardware yet.
//
// A threadgroup has a slice of the state's columns, and takes the sequence step by step from its first token to its
// last. A step has 8 tokens for each simdgroup. The simdgroups first compute the step's outputs from the state before
// the step (outputs_metal.h). Then each simdgroup adds the step to its own rows of the state. On these GPUs a
// threadgroup cannot wait for another, so a sequence is not split between threadgroups. Without CAUSAL all steps are
// added before the first output.
//
// Function constants: all of linear.h except CHUNK. Threadgroup memory: MetalFusedLayout. Grid: (sequences, heads,
// slices of the columns); metal_linear_threads threads. A lane has 8 accumulators (4 if HEAD_DIM is above 216). With
// GATE_CHANNEL a lane also has HEAD_DIM / 4 floats of Since (outputs_metal.h). Together these are at most 68 registers.
#include "common/linear/kernels/outputs_metal.h"
#include "common/linear/kernels/phases_metal.h"

constexpr constant int SLICE = MetalFusedLayout(HEAD_DIM).slice, ROW = MetalFusedLayout(HEAD_DIM).row;
constexpr constant int KEY_SUMS = MetalFusedLayout(HEAD_DIM).key_sums;
constexpr constant int SIMDGROUPS = metal_linear_threads / SIMD, STEP = SIMDGROUPS * 8;

/// Adds a step of `rows` tokens, which begins at token 0 of `tokens`, to the simdgroup's rows of the state.
INLINE void add_step(thread const Tokens& tokens, int rows, int first_column, threadgroup float* state, int simdgroup,
                     uint lane) {
  const int row = fragment_row(lane), column = fragment_column(lane);
  const int columns = min(SLICE, static_cast<int>(VALUE_DIM) - first_column) / 8;
  for (int first_row = simdgroup * 8; first_row < HEAD_DIM; first_row += SIMDGROUPS * 8) {
    const int d = first_row + row;
    Matrix sums[SLICE / 8];
    UNROLL for (int e = 0; e < SLICE / 8; ++e) sums[e] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    float since = 0;  // logarithm of the decay of row d over the step's tokens after the group
    for (int group = (rows - 1) / 8 * 8; group >= 0; group -= 8) {
      Matrix keys;
      for (int i = 0; i < 2; ++i) {
        const int token = group + column + i;
        float log = since;
        for (int after = token + 1; after < min(group + 8, rows); ++after) log += tokens.decay(after, d);
        const float factor = GATE == GATE_NONE ? 1.0f : power_of_e(log);
        keys.thread_elements()[i] = token < rows ? tokens.k(token, d) * factor : 0.0f;
      }
      for (int token = group; token < min(group + 8, rows); ++token) since += tokens.decay(token, d);
      UNROLL for (int e = 0; e < SLICE / 8; ++e) {
        if (e >= columns) continue;
        Matrix values;
        for (int i = 0; i < 2; ++i) {
          const int token = group + row;
          values.thread_elements()[i] = token < rows ? tokens.v(token, first_column + e * 8 + column + i) : 0.0f;
        }
        simdgroup_multiply_accumulate(sums[e], keys, values, sums[e]);
      }
    }
    const float decay = GATE == GATE_NONE ? 1.0f : power_of_e(since);
    UNROLL for (int e = 0; e < SLICE / 8; ++e) {
      if (e >= columns) continue;
      for (int i = 0; i < 2; ++i) {
        threadgroup float& there = state[d * ROW + e * 8 + column + i];
        there = (GATE == GATE_NONE ? there : there * decay) + sums[e].thread_elements()[i];
      }
    }
  }
}

/// Adds a step of `rows` tokens to row d of the key sum.
INLINE void add_keys(thread const Tokens& tokens, int rows, threadgroup float* key_sums, int d) {
  float sum = key_sums[d];
  for (int token = 0; token < rows; ++token) {
    if (GATE != GATE_NONE) sum *= power_of_e(tokens.decay(token, d));
    sum += tokens.k(token, d);
  }
  key_sums[d] = sum;
}

kernel void fused(constant SpanParams& p [[buffer(0)]], threadgroup float* state [[threadgroup(0)]],
                  uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint simdgroup_index [[simdgroup_index_in_threadgroup]]) {
  const int sequence = static_cast<int>(group.x), head = static_cast<int>(group.y);
  const int first_column = static_cast<int>(group.z) * SLICE, simdgroup = static_cast<int>(simdgroup_index);
  const int width = min(SLICE, static_cast<int>(VALUE_DIM) - first_column), own = static_cast<int>(thread_index);
  const SequenceRows place = rows_of_sequence(lengths_of(p), sequence, 1);
  const long index = (static_cast<long>(sequence) * p.heads + head) * HEAD_DIM;
  threadgroup float* const key_sums = state + KEY_SUMS;

  for (int i = own; i < HEAD_DIM * width; i += metal_linear_threads) {
    const int d = i / width, e = i % width;
    state[d * ROW + e] = p.initial_state ? p.initial_state[(index + d) * VALUE_DIM + first_column + e] : 0.0f;
  }
  if (NORMALISED && own < HEAD_DIM) key_sums[own] = p.initial_key_sum ? p.initial_key_sum[index + own] : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (int pass = CAUSAL ? 1 : 0; pass < 2; ++pass) {  // without CAUSAL: pass 0 adds all steps, pass 1 computes outputs
    for (int first = 0; first < place.rows; first += STEP) {
      const Tokens tokens(p, place.batch, head, place.first + first);
      const int rows = min(STEP, place.rows - first);
      if (pass == 1 && simdgroup * 8 < rows) {
        write_outputs<SLICE / 8>(tokens, rows, simdgroup * 8, first_column, state, ROW, key_sums, lane);
      }
      if (pass == 1 && !CAUSAL) continue;
      threadgroup_barrier(mem_flags::mem_threadgroup);  // all simdgroups have read the state
      add_step(tokens, rows, first_column, state, simdgroup, lane);
      if (NORMALISED && own < HEAD_DIM) add_keys(tokens, rows, key_sums, own);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }

  for (int i = own; i < HEAD_DIM * width && p.final_state; i += metal_linear_threads) {
    const int d = i / width, e = i % width;
    p.final_state[(index + d) * VALUE_DIM + first_column + e] = state[d * ROW + e];
  }
  if (NORMALISED && p.final_key_sum && group.z == 0 && own < HEAD_DIM) p.final_key_sum[index + own] = key_sums[own];
}
