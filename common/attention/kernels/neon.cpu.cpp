// Variant `tuned` on AArch64: tuned.cpu.cpp, which describes the kernel, with another register tile.
//
// A multiply-add of AArch64 takes one factor from any lane of a register. So the register tile loads four numbers with
// one instruction, and broadcasts none: a broadcast from memory also takes a slot of the units that multiply and add.
#include "common/attention/kernels/tuned.h"
#include "common/attention/kernels/tuned/hooks.h"

namespace {

#include "common/attention/kernels/tuned/constants.h"
#include "common/attention/kernels/tuned/lanes.h"
// This header uses the two above.
#include "common/attention/kernels/neon/sums.h"

/// multiply_add_tile() for K, whose words lie next to each other along a row. `depth` is a multiple of 4.
template <int ROWS>
NOINLINE void multiply_keys(float* rows, const char* a, long row_step, const float* panel, int depth, Floats* maximum) {
  Floats acc[ROWS][VECTORS];
  begin_sums<ROWS>(acc, rows, nullptr);
  const char* row[ROWS];
  UNROLL for (int r = 0; r < ROWS; ++r) row[r] = a + r * row_step;
  for (long i = 0; i < depth; i += 4) {
    Quad words[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) words[r] = load<Quad>(reinterpret_cast<const float*>(row[r]) + i);
    UNROLL for (int lane = 0; lane < 4; ++lane) {
      UNROLL for (int v = 0; v < VECTORS; ++v) {
        const Floats b = load<Floats>(panel + v * VECTOR_WIDTH);
        UNROLL for (int r = 0; r < ROWS; ++r) acc[r][v] += words[r][lane] * b;
      }
      panel += PANEL;
    }
  }
  end_sums<ROWS>(acc, rows, maximum);
}

/// multiply_add_tile() for V, whose words lie next to each other along a column.
template <int ROWS>
NOINLINE void multiply_values(float* rows, const Floats* factor, const char* a, long step, const float* panel,
                              int depth) {
  Floats acc[ROWS][VECTORS];
  begin_sums<ROWS>(acc, rows, factor);
#pragma clang loop unroll_count(2)
  for (int i = 0; i < depth; ++i) {
    const float* const words = reinterpret_cast<const float*>(a);
    Quad four[(ROWS + 3) / 4] = {};
    UNROLL for (int r = 0; r < ROWS; ++r) {
      if (r % 4 == 0 && r + 4 <= ROWS) four[r / 4] = load<Quad>(words + r);
      if (r >= ROWS / 4 * 4) four[r / 4][r % 4] = words[r];
    }
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      const Floats b = load<Floats>(panel + v * VECTOR_WIDTH);
      UNROLL for (int r = 0; r < ROWS; ++r) acc[r][v] += four[r / 4][r % 4] * b;
    }
    a += step;
    panel += PANEL;
  }
  end_sums<ROWS>(acc, rows, nullptr);
}

/// tuned.cpu.cpp describes this function.
template <int ROWS>
INLINE void multiply_add_tile(float* rows, const Floats* factor, const char* a, long row_step, long step,
                              const float* panel, int depth, Floats* maximum) {
  if (step == WORD_BYTES) {
    multiply_keys<ROWS>(rows, a, row_step, panel, depth, maximum);
  } else {
    multiply_values<ROWS>(rows, factor, a, step, panel, depth);
  }
}

namespace words {
#include "common/attention/kernels/tuned/tile.h"
}
using words::Params;

struct Tile : words::Tile {
  using words::Tile::Tile;

  // O = O * alpha + V^T weights.
  INLINE void accumulate(int panel, int begin, int keys, const Floats (&alpha)[VECTORS]) {
    float* o = o_panels + panel * HEAD_DIM * PANEL;
    for (int column = 0, rows = 0; column < HEAD_DIM; column += rows) {
      rows = columns_of_tile(HEAD_DIM - column);
      const char* const v = reinterpret_cast<const char*>(v_block + begin * ROW_WORDS + column);
      words::multiply_add(rows, o + column * PANEL, alpha, v, WORD_BYTES, ROW_BYTES, scores + begin * PANEL,
                          keys - begin, nullptr);
    }
  }
};

}  // namespace

#include "common/attention/kernels/tuned/forward.h"
