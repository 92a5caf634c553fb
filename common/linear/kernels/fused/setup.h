// What all warps of a threadgroup of `fused` share: constants, and threadgroup memory with its barriers.
#pragma once

#include "common/kernel/wgmma.h"
#include "common/linear/kernels/fused.h"

namespace {

#if GATE_VALUE != 3 || HEAD_DIM_VALUE > 64
constexpr int COLUMN_PANELS = 1;
#endif
constexpr bool GATED = GATE == GATE_HEAD || GATE == GATE_TOKEN;  // one decay for all rows of S
constexpr bool BY_ROW = GATE == GATE_CHANNEL;                    // each row of S has its own decay
constexpr bool PREPARED = fused_prepares(GATE, HEAD_DIM);
constexpr bool BY_CHANNEL = BY_ROW && !PREPARED;
constexpr FusedLayout layout(HEAD_DIM, STAGES, GATE, NORMALISED, COLUMN_PANELS);
constexpr int PANELS = layout.panels;
constexpr int BLOCKS = COLUMN_PANELS * PANELS;     // of 64 x 64 elements of S, column panel by column panel
constexpr int OUTPUT_GROUPS = BY_CHANNEL ? 2 : 1;  // warpgroups that compute outputs
constexpr int CHUNK = fused_chunk;
constexpr int PANEL_BYTES = FusedLayout::panel_bytes;
constexpr int K_STEP = 32 / 16;                     // how much a descriptor grows for 16 columns
constexpr int MN_STEP = 16 * PANEL_ROW_BYTES / 16;  // for 16 rows
constexpr int NARROW_STEP = 16 * 16 / 16;           // for a narrow operand: 16 rows of 8 columns
constexpr int STATE_FLOATS = fused_state_floats(HEAD_DIM, NORMALISED, COLUMN_PANELS);
constexpr int QUADS = NORMALISED ? 9 : 8;  // groups of four floats in a thread's part of a panel of the state

extern __shared__ __align__(1024) unsigned char memory[];

constexpr int no_more_tasks = -1;  // a value of Barriers::task

struct Barriers {
  Barrier full[STAGES], empty[STAGES];
  Barrier state_written, state_read;  // for the 16-bit copy of S, once for each chunk of outputs
  int task[STAGES];                   // the task of the stage's chunk
};
static_assert(sizeof(Barriers) <= 1024);

DEVICE Barriers& barriers() { return *reinterpret_cast<Barriers*>(memory + layout.barriers); }

// Named barriers: of the state's warpgroup; of both warpgroups, or by channel of both that compute outputs. By channel
// the state's warpgroup says that the decays of a chunk are in threadgroup memory, and the others say that the decayed
// keys are.
constexpr int state_barrier = 1, both_barrier = 2, decays_barrier = 3, keys_barrier = 4;

}  // namespace
