// Variant `tuned` for f16 on AArch64 cores that multiply numbers of f16 and add the products to sums of f32 (FEAT_FHM):
// tuned.cpu.cpp, which describes the kernel, with other products.
//
// FMLAL takes one factor from four lanes of a register, the other from any one lane of a register. No number of K is
// converted or copied, and all tensors take half the space of floats:
//   q_panels [BLOCK_R / PANEL][HEAD_DIM][PANEL]
//   scores   [key][PANEL] floats, then weights [key][PANEL]
//   v_block  [key][HEAD_DIM]; two keys take the space of a row, which holds pairs in tuned.cpu.cpp
// Grid, hooks, and all else in threadgroup memory are those of tuned.cpu.cpp with BF16_DOT.
#include "common/attention/kernels/tuned.h"
#include "common/attention/kernels/tuned/hooks.h"

namespace {

#include "common/attention/kernels/tuned/constants.h"
#include "common/attention/kernels/tuned/lanes.h"
// This header uses the two above.
#include "common/attention/kernels/neon/sums.h"

constexpr int HALF_BYTES = 2;
constexpr int ROW_HALVES = ROW_WORDS;  // from a key's row of v_block to the next

using Halves = Vector<_Float16, 8>;
using FourHalves = Vector<_Float16, 4>;

INLINE FourHalves to_halves(Floats floats) { return __builtin_convertvector(floats, FourHalves); }
INLINE Floats joined(FourHalves a, FourHalves b) {
  return reinterpret_cast<Floats>(Halves(__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7)));
}

/// The next PANEL numbers of a panel, eight queries in a register.
struct PanelRow {
  Halves eights[(VECTORS + 1) / 2];

  INLINE explicit PanelRow(const _Float16* panel) {
    if constexpr (VECTORS == 1) {
      const auto four = load<FourHalves>(panel);
      eights[0] = __builtin_shufflevector(four, four, 0, 1, 2, 3, 0, 1, 2, 3);
    } else {
      UNROLL for (int i = 0; i < VECTORS / 2; ++i) eights[i] = load<Halves>(panel + 8 * i);
    }
  }
};

/// acc += factor[lane] * row.
INLINE void multiply_add_halves(Floats (&acc)[VECTORS], Halves factor, int lane, const PanelRow& row) {
  using Bytes = Vector<signed char, 16>;
  constexpr int floats = 41;  // clang's number for the type of the result
  const _Float16 x = factor[lane];
  const auto b = reinterpret_cast<Bytes>(Halves{x, x, x, x, x, x, x, x});
  UNROLL for (int v = 0; v < VECTORS; ++v) {
    const auto sum = reinterpret_cast<Bytes>(acc[v]), a = reinterpret_cast<Bytes>(row.eights[v / 2]);
    acc[v] = reinterpret_cast<Floats>(v % 2 == 0 ? __builtin_neon_vfmlalq_low_f16(sum, a, b, floats)
                                                 : __builtin_neon_vfmlalq_high_f16(sum, a, b, floats));
  }
}

/// multiply_add_tile() for K, whose numbers lie next to each other along a row. `depth` is a multiple of 8.
template <int ROWS>
NOINLINE void multiply_keys(float* rows, const char* a, long row_step, const _Float16* panel, int depth,
                            Floats* maximum) {
  Floats acc[ROWS][VECTORS];
  begin_sums<ROWS>(acc, rows, nullptr);
  const char* row[ROWS];
  UNROLL for (int r = 0; r < ROWS; ++r) row[r] = a + r * row_step;
  for (long i = 0; i < depth; i += 8) {
    Halves keys[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) keys[r] = load<Halves>(reinterpret_cast<const _Float16*>(row[r]) + i);
    UNROLL for (int lane = 0; lane < 8; ++lane) {
      const PanelRow b(panel);
      UNROLL for (int r = 0; r < ROWS; ++r) multiply_add_halves(acc[r], keys[r], lane, b);
      panel += PANEL;
    }
  }
  end_sums<ROWS>(acc, rows, maximum);
}

/// multiply_add_tile() for V, whose numbers lie next to each other along a column.
template <int ROWS>
NOINLINE void multiply_values(float* rows, const Floats* factor, const char* a, long step, const _Float16* panel,
                              int depth) {
  Floats acc[ROWS][VECTORS];
  begin_sums<ROWS>(acc, rows, factor);
#pragma clang loop unroll_count(2)
  for (int i = 0; i < depth; ++i) {
    const auto* const numbers = reinterpret_cast<const _Float16*>(a);
    Halves values[(ROWS + 3) / 4];
    UNROLL for (int r = 0; r < ROWS; r += 4) {
      if (r + 4 <= ROWS) {
        const auto four = load<FourHalves>(numbers + r);
        values[r / 4] = __builtin_shufflevector(four, four, 0, 1, 2, 3, -1, -1, -1, -1);
      } else {
        UNROLL for (int rest = r; rest < ROWS; ++rest) values[r / 4][rest - r] = numbers[rest];
      }
    }
    const PanelRow b(panel);
    UNROLL for (int r = 0; r < ROWS; ++r) multiply_add_halves(acc[r], values[r / 4], r % 4, b);
    a += step;
    panel += PANEL;
  }
  end_sums<ROWS>(acc, rows, nullptr);
}

/// tuned.cpu.cpp describes this function. For K `depth` is the number of words in a row.
template <int ROWS>
INLINE void multiply_add_tile(float* rows, const Floats* factor, const char* a, long row_step, long step,
                              const float* panel, int depth, Floats* maximum) {
  const auto* const halves = reinterpret_cast<const _Float16*>(panel);
  if (step == WORD_BYTES) {
    multiply_keys<ROWS>(rows, a, row_step, halves, 2 * depth, maximum);
  } else {
    multiply_values<ROWS>(rows, factor, a, step, halves, depth);
  }
}

#include "common/attention/kernels/neon/half.h"

struct Tile : HalfTile {
  using HalfTile::HalfTile;

  // Packs Q. The family's panels have a row of words after the other, each with two numbers of a query; here the first
  // numbers of all queries come before the second.
  INLINE void begin() {
    HalfTile::begin();
    const float* const end = q_panels + (queries + PANEL - 1) / PANEL * PANEL * DEPTH;
    for (float* row = q_panels; row < end; row += PANEL) {
      FourHalves first[VECTORS], second[VECTORS];
      UNROLL for (int v = 0; v < VECTORS; ++v) {
        const auto both = reinterpret_cast<Halves>(load<Floats>(row + v * VECTOR_WIDTH));
        first[v] = __builtin_shufflevector(both, both, 0, 2, 4, 6);
        second[v] = __builtin_shufflevector(both, both, 1, 3, 5, 7);
      }
      auto* const to = reinterpret_cast<_Float16*>(row);
      UNROLL for (int v = 0; v < VECTORS; ++v) {
        store(to + v * VECTOR_WIDTH, first[v]);
        store(to + PANEL + v * VECTOR_WIDTH, second[v]);
      }
    }
  }

  // Copies `keys` rows of V from `first_key` on to v_block.
  INLINE void stage_pairs(int first_key, int keys) {
    auto* to = reinterpret_cast<_Float16*>(v_block);
    for (int key = 0; key < keys; ++key, to += ROW_HALVES) {
      const auto* const v = static_cast<const _Float16*>(p.v) + row_of(p.v_strides, first_key + key);
      for (int d = 0; d < HEAD_DIM; d += 8) store(to + d, load<Halves>(v + d));
    }
  }

  INLINE void softmax(int panel, int begin, int keys, const Floats (&new_maximum)[VECTORS], Floats (&alpha)[VECTORS]) {
    weigh_fours<5>(
        panel, begin, keys, new_maximum, alpha,
        [](const Floats(&weights)[4], Floats(&packed)[2]) INLINE_LAMBDA {
          UNROLL for (int i = 0; i < 2; ++i) {
            packed[i] = joined(to_halves(weights[2 * i]), to_halves(weights[2 * i + 1]));
          }
        },
        [&](int number, const Floats(&packed)[VECTORS][2]) INLINE_LAMBDA {
          auto* const to = reinterpret_cast<_Float16*>(scores) + 4 * number * PANEL;
          UNROLL for (int v = 0; v < VECTORS; ++v) {
            UNROLL for (int i = 0; i < 4; ++i) {
              const auto two = reinterpret_cast<Halves>(packed[v][i / 2]);
              store(to + i * PANEL + v * VECTOR_WIDTH, i % 2 == 0
                                                           ? FourHalves(__builtin_shufflevector(two, two, 0, 1, 2, 3))
                                                           : FourHalves(__builtin_shufflevector(two, two, 4, 5, 6, 7)));
            }
          }
        });
  }

  // O = O * alpha + V^T weights.
  INLINE void accumulate(int panel, int begin, int keys, const Floats (&alpha)[VECTORS]) {
    float* o = o_panels + panel * HEAD_DIM * PANEL;
    const auto* const weights = reinterpret_cast<const float*>(reinterpret_cast<_Float16*>(scores) + begin * PANEL);
    for (int column = 0, rows = 0; column < HEAD_DIM; column += rows) {
      rows = columns_of_tile(HEAD_DIM - column);
      const auto* const v = reinterpret_cast<_Float16*>(v_block) + begin * ROW_HALVES + column;
      multiply_add(rows, o + column * PANEL, alpha, reinterpret_cast<const char*>(v), HALF_BYTES,
                   ROW_HALVES * HALF_BYTES, weights, keys - begin, nullptr);
    }
  }
};

}  // namespace

#include "common/attention/kernels/tuned/forward.h"
