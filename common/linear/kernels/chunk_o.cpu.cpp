// Computes the outputs of each chunk from the state before the chunk (linear.h). The state lies in threadgroup memory.
// The kernel computes a chunk in steps of a few tokens. If CAUSAL, it adds each step's keys and values to the state
// before the next step begins.
//
// Threadgroup memory: StepsLayout. Grid: (chunk numbers, heads).
#include "common/linear/kernels/step_outputs.h"

extern "C" void chunk_o(const ChunkParams* params, const Threadgroup* group) {
  const int number = static_cast<int>(group->index[0]), head = static_cast<int>(group->index[1]);
  const ChunkPlace place = place_of_chunk(*params, number, CHUNK);
  if (place.rows == 0) return;
  OutputSteps steps(*params, *group, place.batch, head);
  const long long index = state_index(CAUSAL ? number : place.first_chunk, params->heads, head);
  steps.read(params->states + index * HEAD_DIM * VALUE_DIM, NORMALISED ? params->key_sums + index * HEAD_DIM : nullptr);
  const int end = place.first + place.rows;
  for_steps(place.first, end, [&](int first, int rows) INLINE_LAMBDA {
    steps.run(first, rows);
    if (CAUSAL && first + rows < end) steps.update(rows);
  });
}
