// Computes what each chunk's tokens add to the state, and the chunk's decay: linear.h has the contract. What the tokens
// add is the state at the chunk's end, computed from a state of zeros before the chunk.
//
// Threadgroup memory: StepsLayout. Grid: (chunk numbers, heads).
#include "common/linear/kernels/steps.h"

extern "C" void chunk_h(const ChunkParams* params, const Threadgroup* group) {
  const int number = static_cast<int>(group->index[0]), head = static_cast<int>(group->index[1]);
  const ChunkPlace place = place_of_chunk(*params, number, CHUNK);
  if (place.rows == 0) return;
  Steps steps(*params, *group, place.batch, head);
  steps.clear();
  for_steps(place.first, place.first + place.rows, [&](int first, int rows) INLINE_LAMBDA { steps.add(first, rows); });
  const long long index = state_index(number, params->heads, head);
  steps.write(params->states + index * HEAD_DIM * VALUE_DIM,
              NORMALISED ? params->key_sums + index * HEAD_DIM : nullptr);
  constexpr int width = GATE == GATE_CHANNEL ? HEAD_DIM : 1;
  for (int d = 0; GATE != GATE_NONE && d < width; ++d) params->decays[index * width + d] = steps.logs[d];
}
