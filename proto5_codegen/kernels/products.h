// For kernels of the cpu: the register tile of the hand-written products Q K^T and P V. A tile holds rows of
// TILE_VECTORS vectors of sums. Each step loads TILE_VECTORS vectors of one factor, and multiplies them, for each row,
// by a broadcast element of the other factor. common/attention/kernels/tuned.cpu.cpp transposes its tiles
// ([key][query]) for its softmax. No softmax follows here, so these tiles are not transposed.
//
// Function constants: VECTOR_WIDTH, TILE_VECTORS, TILE_ROWS.
#pragma once

#include "common/kernel/cpu.h"

namespace {

using Floats = Vector<float, VECTOR_WIDTH>;
constexpr int PANEL = TILE_VECTORS * VECTOR_WIDTH;  // columns of a tile

/// out[r][c] = sum over i < depth of a[r * row_step + i] * panel[i * panel_step + c] for ROWS rows and PANEL columns.
/// With ADD, the sum is added to out[r][c].
template <int ROWS, bool ADD>
NOINLINE void product_tile(float* out, long out_step, const float* a, long row_step, const float* panel,
                           long panel_step, int depth) {
  Floats acc[ROWS][TILE_VECTORS] = {};
  if constexpr (ADD) {
    UNROLL for (int r = 0; r < ROWS; ++r) {
      UNROLL for (int v = 0; v < TILE_VECTORS; ++v) acc[r][v] = load<Floats>(out + r * out_step + v * VECTOR_WIDTH);
    }
  }
  // One pointer serves three rows, at distances of 0, row_step and 2 row_step. Pointers to all rows of a tall tile
  // would not fit into the registers.
  const float* group[(ROWS + 2) / 3];
  UNROLL for (int g = 0; g < (ROWS + 2) / 3; ++g) group[g] = a + 3 * g * row_step;
#pragma clang loop unroll_count(2)
  for (int i = 0; i < depth; ++i) {
    Floats b[TILE_VECTORS];
    UNROLL for (int v = 0; v < TILE_VECTORS; ++v) b[v] = load<Floats>(panel + v * VECTOR_WIDTH);
    panel += panel_step;
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const float word = group[r / 3][r % 3 * row_step];
      UNROLL for (int v = 0; v < TILE_VECTORS; ++v) acc[r][v] += word * b[v];
    }
    UNROLL for (int g = 0; g < (ROWS + 2) / 3; ++g)++ group[g];
  }
  UNROLL for (int r = 0; r < ROWS; ++r) {
    UNROLL for (int v = 0; v < TILE_VECTORS; ++v) store(out + r * out_step + v * VECTOR_WIDTH, acc[r][v]);
  }
}

/// product_tile() for `rows` rows, in tiles of TILE_ROWS rows and then in single rows.
template <bool ADD>
INLINE void product(int rows, float* out, long out_step, const float* a, long row_step, const float* panel,
                    long panel_step, int depth) {
  for (int r = 0; r < rows;) {
    const bool whole = rows - r >= TILE_ROWS;
    (whole ? product_tile<TILE_ROWS, ADD> : product_tile<1, ADD>)(out + r * out_step, out_step, a + r * row_step,
                                                                  row_step, panel, panel_step, depth);
    r += whole ? TILE_ROWS : 1;
  }
}

INLINE int smaller(int a, int b) { return a < b ? a : b; }

}  // namespace
