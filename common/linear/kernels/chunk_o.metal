// Computes the outputs of each chunk from the state before the chunk (linear.h). The kernel has not run on Apple
// hardware yet.
//
// A simdgroup computes the outputs of 8 tokens at a time (outputs_metal.h).
//
// Function constants: see linear.h. No threadgroup memory. Grid: (chunk numbers, heads); metal_linear_threads threads.
// Accumulators of a lane: VALUE_DIM / 4 registers, and with GATE_CHANNEL HEAD_DIM / 4 more for logarithms of decays
// (Since). Together they take at most 128 registers, and 64 if HEAD_DIM and VALUE_DIM are 128.
#include "common/linear/kernels/outputs_metal.h"
#include "common/linear/kernels/phases_metal.h"

kernel void chunk_o(constant ChunkParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const int number = static_cast<int>(group.x), head = static_cast<int>(group.y);
  const ChunkPlace place = place_of_chunk(lengths_of(p), number, CHUNK);
  const Tokens tokens(p, place.batch, head, place.first);
  const long index = state_index(CAUSAL ? number : place.first_chunk, p.heads, head);
  const device float* const state = p.states + index * HEAD_DIM * VALUE_DIM;
  const device float* const key_sums = p.key_sums + index * HEAD_DIM;
  for (int first = static_cast<int>(simdgroup) * 8; first < place.rows; first += metal_linear_threads / SIMD * 8) {
    write_outputs<VALUE_DIM / 8>(tokens, place.rows, first, 0, state, VALUE_DIM, key_sums, lane);
  }
}
