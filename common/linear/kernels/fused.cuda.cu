// Linear attention in one pass on Hopper's tensor cores. Q, K and V have 16 bits; the state is f32 and lies in
// registers.
//
// A threadgroup computes 64 value columns of a sequence and head at a time, or in one launch by channel 64 *
// COLUMN_PANELS. Chunks of 64 tokens pass through STAGES buffers. One thread fills the buffers by tensor copies. One
// warpgroup computes the state S, and another warpgroup the outputs O:
//
//   S = e^G_end S + K^T (e^(G_end - G_j) V)
//   O = e^G (Q S) + (Q K^T o M) V,   M_ij = e^(G_i - G_j) for j <= i
//
// The sign o between matrices multiplies element by element; M_ij is 0 for j > i. G_i is the sum of the logarithms of
// the decays of the chunk's tokens 0 to i; G_end is G of the last token (Dao and Gu 2024, Mamba-2; Yang et al. 2024).
// Shared memory has a copy of S, rounded to 16 bits, for the product Q S. So one warpgroup computes the state after a
// chunk while the other computes the outputs of this chunk. In f16 an element of the copy is infinite if the absolute
// value of the element of S is 65520 or more.
//
// If the gate is by channel, G has a row for each channel, and decays multiply Q and K: O = (e^G o Q) S + W V and S =
// e^G_end S + (e^(G_end - G) o K)^T V. If HEAD_DIM is at most 64, two warpgroups compute the weights W and the outputs;
// scores.h says how. Else decay_chunks.cuda.cu has computed W, both products with decays, and e^G_end, in a launch
// before, and this kernel copies them in place of Q, K and the gates.
//
// If sequences and heads do not fill the device, a sequence is cut into segments. Unless its segment is the last, a
// task first reads the segment's keys and values, and publishes the segment's own state: what the segment adds to S.
// Then each task computes the state before its segment from what earlier segments have published (decoupled look-back,
// Merrill and Garland 2016), and computes the outputs. Threadgroups take tasks in the order of the tasks' segments. So
// a task waits only for tasks that some threadgroup has begun. Unless this kernel decays by channel, the keys and
// values of a segment of at most STAGES chunks stay in shared memory, and are read only once.
//
// If NORMALISED, the kernel computes the key sum z by products too: K^T times the tokens' decays. The decays fill eight
// columns, the least width of a product on a tensor core. The feature map is applied to Q and K in shared memory.
//
// The files of fused/, by role: schedule.h (tasks), producer.h (copies), warpgroup.h (what all warpgroups do), state.h
// (S of a warpgroup's chunks) and look_back.h (S of earlier segments), outputs.h (products of the outputs) and
// epilogue.h (their way to memory); by channel also channels.h (the order of rows), scores.h (weights) and blocks.h
// (what a warp computes for 16 tokens). setup.h has what all of them share.
//
// Function constants: HEAD_DIM (multiple of 8, at most 256), STAGES, GATE, NORMALISED, IN_TYPE; by channel
// COLUMN_PANELS (1 or 2) if HEAD_DIM is at most 64. Grid: at most as many threadgroups as run at the same time, one
// on a multiprocessor; 384 threads, or 512 if COLUMN_PANELS is given; FusedLayout's threadgroup memory.
//
// Checked: fused[GATE=0,HEAD_DIM=64,IN_TYPE=2,NORMALISED=0,STAGES=8] without spills
// Checked: fused[GATE=2,HEAD_DIM=64,IN_TYPE=2,NORMALISED=1,STAGES=8] without spills
// Checked: fused[GATE=0,HEAD_DIM=128,IN_TYPE=2,NORMALISED=0,STAGES=5] without spills
// Checked: fused[GATE=2,HEAD_DIM=128,IN_TYPE=1,NORMALISED=1,STAGES=4] without spills
// Checked: fused[GATE=0,HEAD_DIM=256,IN_TYPE=2,NORMALISED=0,STAGES=2] without spills
// Checked: fused[GATE=2,HEAD_DIM=256,IN_TYPE=2,NORMALISED=1,STAGES=2] without spills
// Checked: fused[COLUMN_PANELS=1,GATE=3,HEAD_DIM=64,IN_TYPE=2,NORMALISED=0,STAGES=4] without spills
// Checked: fused[COLUMN_PANELS=2,GATE=3,HEAD_DIM=64,IN_TYPE=1,NORMALISED=1,STAGES=3] without spills
// Checked: fused[GATE=3,HEAD_DIM=128,IN_TYPE=2,NORMALISED=0,STAGES=4] without spills
// Checked: fused[GATE=3,HEAD_DIM=256,IN_TYPE=2,NORMALISED=0,STAGES=2] without spills
// Checked: fused[GATE=3,HEAD_DIM=256,IN_TYPE=2,NORMALISED=1,STAGES=2]
#include "common/linear/kernels/fused/look_back.h"
#include "common/linear/kernels/fused/outputs.h"
#include "common/linear/kernels/fused/producer.h"

extern "C" __global__ void __launch_bounds__((2 + OUTPUT_GROUPS) * WARPGROUP, 1)
    fused(const __grid_constant__ FusedParams p) {
  Barriers& bars = barriers();
  const unsigned epoch = 2 * *static_cast<volatile unsigned*>(p.counters + 2);
  if (threadIdx.x == 0) {
    constexpr int warps = WARPGROUP / 32;
    for (int stage = 0; stage < STAGES; ++stage) {
      bars.full[stage].init(1);
      bars.empty[stage].init((1 + OUTPUT_GROUPS) * warps);
    }
    bars.state_written.init(warps);
    bars.state_read.init(COLUMN_PANELS * warps);
    fence_barrier_init();
  }
  __syncthreads();
  // The warpgroup that copies needs few registers; the other warpgroups take the rest.
  constexpr int few = 24, of_state = BY_CHANNEL ? 184 : 240, of_outputs = BY_CHANNEL ? 152 : 240;
  const int warpgroup = uniform(threadIdx.x / WARPGROUP);
  if (warpgroup == 0) {
    take_registers<of_state>();
    Segments(p, epoch).run();
  } else if (warpgroup == 1 || (BY_CHANNEL && warpgroup == 2)) {
    take_registers<of_outputs>();
    Outputs(p, BY_CHANNEL ? warpgroup : 1).run();
  } else {
    give_registers<few>();
    if (threadIdx.x == (1 + OUTPUT_GROUPS) * WARPGROUP) produce(p);
  }
}
