// The score hook: what happens to a scaled score before the softmax. This file is the identity; an experiment puts
// another text in its place (KernelSource::includes["common/attention/kernels/score.h"]) to add ALiBi, a soft cap, a
// window ... without a second kernel. A hook that returns -INFINITY hides the pair, and no other number does. The keys
// hook (keys.h) can do more: kernels leave out blocks of keys that no row sees.
//
// A hook defines `score`. It may take q and k as float, exact up to 2^24, which spares `wgmma` conversions. Where it
// defines SCORE_GRAIN as well, it gets many scores at once, in place, from kernels that give them (`tuned` on the cpu;
// on the GPU `mma_sync`, and tiles also `wgmma`):
//   SCORE_ROW   void score_row(float* s, int q, int k, const ScoreContext&)
//               cpu: VECTOR_WIDTH queries from q on, of key k; GPU: BLOCK_C / 4 keys of query q, number i is key
//               k + i / 2 * 8 + i % 2
//   SCORE_TILE  void score_tile(float* s, int keys, int q, int k, const ScoreContext&)
//               cpu: [keys][PANEL] scores, PANEL queries from q on (TunedLayout); GPU: BLOCK_C / 2 scores of two rows,
//               number i is query q + i / 2 % 2 * 8 and key k + i / 4 * 8 + i % 2
//
// With SCORE_TILE a hook on a GPU may also define SCORE_IN and SCORE_OUT, factors that score_tile leaves to the kernel:
// it multiplies scores by SCORE_IN before, and by SCORE_OUT after it, together with factors of its own.
// A hook that defines SCORE_IS_BOUNDED as true says that its scores stay below 10^30, whatever comes in.
// And it may define SCORE_AHEAD and a struct ScoreAhead, of which read(int q, int k, const ScoreContext&) reads what a
// thread needs from memory: `wgmma` calls it before the scores are there, and score_tile with it as a last argument.
// A hook may say that all it does is to add slope * (k - own), where own = q + kv_len - q_len is the query's own key: it
// defines SCORE_IS_LINEAR as true, and float score_slope(const ScoreContext&) beside score. `wgmma` then has a product
// add it (ScoreChange::linear in ../hook.h tells the host); slope / scale has to be a number in the type of Q.
#pragma once

#include "common/attention/kernels/attention.h"

/// False in every other hook: lets a kernel fold log2(e) into the scale of Q.
#define SCORE_IS_IDENTITY 1

/// s: scale * (q . k); q and k count from the start of their sequence.
static inline float score(float s, int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return s; }
