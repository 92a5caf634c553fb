// The score hook changes a scaled score before the softmax. The hook in this file returns the score unchanged. An
// experiment replaces this file by another text (KernelSource::includes["common/attention/kernels/score.h"]), for
// example to add ALiBi or a soft cap without a second kernel. A hook that returns -INFINITY hides the pair; no other
// number hides a pair. For ranges of keys the keys hook (keys.h) is better: with it, kernels leave out blocks of keys
// that no row sees.
//
// A hook defines `score`, which may take q and k as float: this is exact up to 2^24, and saves `wgmma` conversions. If
// the hook also defines SCORE_GRAIN, some kernels (`tuned` on the cpu; `mma_sync` on the GPU; `wgmma` for SCORE_TILE)
// hand many scores at once to another function of the hook, which changes them in place:
//   SCORE_ROW   void score_row(float* s, int q, int k, const ScoreContext&)
//               cpu: VECTOR_WIDTH queries from q on, of key k; GPU: BLOCK_C / 4 keys of query q, number i is key
//               k + i / 2 * 8 + i % 2
//   SCORE_TILE  void score_tile(float* s, int keys, int q, int k, const ScoreContext&)
//               cpu: [keys][PANEL] scores, PANEL queries from q on (TunedLayout); GPU: BLOCK_C / 2 scores of two rows,
//               number i is query q + i / 2 % 2 * 8 and key k + i / 4 * 8 + i % 2
//
// A hook may define more:
//   SCORE_IN, SCORE_OUT  with SCORE_TILE on a GPU: factors that score_tile leaves to the kernel. The kernel multiplies
//                        scores by SCORE_IN before score_tile and by SCORE_OUT after it, together with its own factors.
//   SCORE_IS_BOUNDED     true: the hook's scores stay below 10^30 for any input
//   SCORE_AHEAD          with SCORE_TILE and a struct ScoreAhead: its read(int q, int k, const ScoreContext&) reads
//                        from memory the numbers that a thread needs. `wgmma` calls read() before it computes the
//                        scores, and passes the struct to score_tile as the last argument.
//   SCORE_IS_LINEAR      true: the hook only adds slope * (k - own), where own = q + kv_len - q_len is the query's own
//                        key. The hook then defines float score_slope(const ScoreContext&) in addition to `score`. If
//                        the host knows that the hook is linear (ScoreChange in ../hook.h), `wgmma` adds the term by
//                        a matrix product; slope / scale must then be finite in the type of Q.
#pragma once

#include "common/attention/kernels/attention.h"

/// Whether the hook returns every score unchanged. If so, a kernel may fold log2(e) into the scale of Q. Every score
/// hook defines this macro.
#define SCORE_IS_IDENTITY 1

/// s: scale * (q . k); q and k count from the start of their sequence.
static inline float score(float s, int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return s; }
