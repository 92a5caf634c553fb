// Variant `tuned`: flash attention forward, designed for the peak rate of the host's multiply-add units.
//
// One threadgroup computes BLOCK_R query rows of one head. The lanes of a vector hold numbers of different queries. The
// rows are cut into panels of PANEL queries. Scores, weights and outputs are kept transposed ([key][query],
// [column][query]). So each lane does the softmax of its own query, and no lane needs numbers of another lane. Both
// products use the same loop over a tile of ROWS x VECTORS accumulators in registers. Each step adds a broadcast word
// times a row of a panel:
//   scores  S[key][query] += K[key][d]   (broadcast) * Q[d][query]
//   outputs O[col][query] += V[key][col] (broadcast) * P[key][query]
// An operand is a word of 4 bytes: a float, or with BF16_DOT a pair of bf16. The two numbers of a pair are factors of
// two neighbouring terms of the sum.
//
// Threadgroup memory, in words; TunedLayout in tuned.h has the offsets:
//   q_panels [BLOCK_R / PANEL][DEPTH][PANEL]       floats * scale (without a score hook: * log4(e) too), or bf16 pairs
//   o_panels [BLOCK_R / PANEL][HEAD_DIM][PANEL]    not yet divided by the row sums
//   maximum, sum [BLOCK_R]                         of the online softmax
//   scores   [BLOCK_C + 3][PANEL]                  one panel's scores, then weights
//   k_block                                        with COPY_K [BLOCK_C + 3][row_words]: the block's rows, as floats or
//                                                  as bf16 pairs. Without COPY_K [4][row_words]: only the rows of a
//                                                  block's last register tile, if that tile reaches beyond the block
//   v_block [BLOCK_C][row_words]                   floats, or [BLOCK_C / 2] rows of pairs
//
// The kernel takes all hooks; pages.h and rotate.h say which constants these two hooks need. A score hook takes one
// score at a time (SCORE_ELEMENT), the scores of one key and VECTOR_WIDTH queries (SCORE_ROW), or the scores of a
// register tile (SCORE_TILE).
//
// Grid: (query tiles, q_heads, batch). Causal tiles run from the last rows to the first, so that the long tiles do not
// come at the end.
#include "common/attention/kernels/tuned.h"

#include "common/attention/kernels/tuned/hooks.h"

namespace {

#include "common/attention/kernels/tuned/constants.h"

#if BF16_DOT_VALUE  // with BF16_DOT vectors have 16 lanes, and the host has the instruction
typedef __bf16 BfloatPairs __attribute__((vector_size(64)));
INLINE Floats multiply_add_pairs(Floats acc, unsigned a, Floats b) {
  const Vector<unsigned, 16> broadcast = Vector<unsigned, 16>{} + a;
  return __builtin_ia32_dpbf16ps_512(acc, reinterpret_cast<BfloatPairs>(broadcast), reinterpret_cast<BfloatPairs>(b));
}
#endif

#include "common/attention/kernels/tuned/lanes.h"

/// Computes one register tile: rows[r][v] = rows[r][v] * factor[v] + sum, or rows[r][v] = sum if `factor` is null. The
/// sum runs over i < depth, and has the terms word(r, i) * panel[i][v], where word(r, i) is the word at byte r *
/// row_step + i * step of `a`. Steps are in bytes, because rows of bf16 need not begin at a word. If `maximum` is not
/// null, each lane of maximum[v] is raised to the largest result of this lane. The function is not inlined: all calls
/// share its two instances, which halves the code to compile.
template <int ROWS>
NOINLINE void multiply_add_tile(float* rows, const Floats* factor, const char* a, long row_step, long step,
                                const float* panel, int depth, Floats* maximum) {
  Floats acc[ROWS][VECTORS] = {};
  if (factor) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      UNROLL for (int v = 0; v < VECTORS; ++v) acc[r][v] =
          load<Floats>(rows + r * PANEL + v * VECTOR_WIDTH) * factor[v];
    }
  }
  // Each pointer serves its own row and the next two rows. Pointers to all rows would not fit the registers.
  const char* group[(ROWS + 2) / 3];
  UNROLL for (int g = 0; g < (ROWS + 2) / 3; ++g) group[g] = a + 3 * g * row_step;
#pragma clang loop unroll_count(2)
  for (int i = 0; i < depth; ++i) {
    Floats b[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) b[v] = load<Floats>(panel + v * VECTOR_WIDTH);
    panel += PANEL;
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const char* word = group[r / 3] + r % 3 * row_step;
      UNROLL for (int v = 0; v < VECTORS; ++v) {
#if BF16_DOT_VALUE
        acc[r][v] = multiply_add_pairs(acc[r][v], load<Vector<unsigned, 1>>(word)[0], b[v]);
#else
        acc[r][v] += *reinterpret_cast<const float*>(word) * b[v];
#endif
      }
    }
    UNROLL for (int g = 0; g < (ROWS + 2) / 3; ++g) group[g] += step;
  }
  UNROLL for (int r = 0; r < ROWS; ++r) {
    UNROLL for (int v = 0; v < VECTORS; ++v) store(rows + r * PANEL + v * VECTOR_WIDTH, acc[r][v]);
  }
  if (maximum) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      UNROLL for (int v = 0; v < VECTORS; ++v) maximum[v] = larger(maximum[v], acc[r][v]);
    }
  }
}

#include "common/attention/kernels/tuned/tile.h"

}  // namespace

#include "common/attention/kernels/tuned/forward.h"
