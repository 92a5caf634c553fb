// A thread of a consumer of `wgmma`: what it keeps in registers, and how the consumer's warps wait for each other and
// for other consumers. A consumer is a warpgroup that computes 64 query rows of a tile. A thread holds parts of rows r
// and r + 8, see common/kernel/wgmma.h.
#pragma once

#include "common/attention/kernels/seen_pairs.h"
#include "common/attention/kernels/wgmma/setup.h"

namespace {

struct Warpgroup {
  const WgmmaParams& p;
  const int index;  // the number of the consumer
  const int thread = threadIdx.x % WARPGROUP;
  const int row = thread / 32 * 16 + thread % 32 / 4;  // the first of the thread's two rows, of 64
  const int column = thread % 4 * 2;                   // the first of the thread's columns, of each group of 8
  float s[BLOCK_C / 2];
  unsigned weights[BLOCK_C / 4];
  float sum[2], shift[2], alpha[2];  // of the thread's two rows
  float slope;                       // LINEAR: the slope in base 2
  unsigned slope_parts[4];           // LINEAR: an operand; in each row the sum of three columns is slope / scale
  float offset[2];                   // LINEAR: the term of key number 0 of the block, in base 2
  bool grew;                         // whether outputs must be multiplied by alpha
  SeenKeys<BLOCK_C> seen[2];         // with a mask hook, for a block that is masked
#ifdef SCORE_AHEAD
  ScoreAhead ahead;  // of one block
#endif

  DEVICE Warpgroup(const WgmmaParams& params, int number) : p(params), index(number) {}

  // With PING_PONG wait_turn() waits for this consumer's turn to issue products, and pass_turn() gives the turn to the
  // next consumer.
  DEVICE void wait_turn() {
    if constexpr (PING_PONG) named_sync(1 + index, 2 * WARPGROUP);
  }
  DEVICE void pass_turn() {
    if constexpr (PING_PONG) named_arrive(1 + (index + 1) % CONSUMERS, 2 * WARPGROUP);
  }

  DEVICE void release(Barrier& empty) {
    if (thread == 0) empty.arrive();
  }

  // Waits for all threads of this consumer. After the wait the threads of each warp run together again.
  DEVICE void sync_consumer() const {
    __syncwarp();
    named_sync(1 + CONSUMERS + index, WARPGROUP);
  }
};

}  // namespace
