// Variant `tuned` for bf16 on AArch64 cores that multiply matrices of bf16 (FEAT_BF16): tuned.cpu.cpp, which describes
// the kernel, with other products.
//
// BFMMLA multiplies two rows of four numbers by two rows of four numbers: it adds the four dot products to the 2 x 2
// sums of a register. So four numbers of a query lie together, and four numbers of a row next to those of the next row:
//   q_panels [BLOCK_R / PANEL][HEAD_DIM / 4][PANEL][4]
//   scores   [key][PANEL] floats, then weights [key / 4][PANEL][4]
//   k_block  [key / 2][HEAD_DIM / 4][2][4]; two keys take the space of two rows
//   v_block  [key / 4][HEAD_DIM][4]; four keys take the space of two rows, which hold pairs in tuned.cpu.cpp
// Grid, hooks, and all else in threadgroup memory are those of tuned.cpu.cpp with BF16_DOT. The instruction takes
// denormals as zeros.
#include "common/attention/kernels/tuned.h"
#include "common/attention/kernels/tuned/hooks.h"

namespace {

#include "common/attention/kernels/tuned/constants.h"
#include "common/attention/kernels/tuned/lanes.h"
// This header uses the two above.
#include "common/attention/kernels/neon/sums.h"

static_assert(COPY_K && MAIN_ROWS % 2 == 0);
constexpr int GROUP = 4, GROUP_WORDS = 2;  // numbers of a row that an instruction takes, and their words

using Group = Vector<float, GROUP_WORDS>;
using Shorts = Vector<unsigned short, 8>;

INLINE Floats multiply_add_groups(Floats acc, Floats a, Floats b) {
  using Bytes = Vector<signed char, 16>;
  constexpr int floats = 41;  // clang's number for the type of the result
  return reinterpret_cast<Floats>(__builtin_neon_vbfmmlaq_f32(reinterpret_cast<Bytes>(acc), reinterpret_cast<Bytes>(a),
                                                              reinterpret_cast<Bytes>(b), floats));
}

INLINE Floats low_halves(Floats a, Floats b) { return __builtin_shufflevector(a, b, 0, 1, 4, 5); }
INLINE Floats high_halves(Floats a, Floats b) { return __builtin_shufflevector(a, b, 2, 3, 6, 7); }

/// tuned.cpu.cpp describes this function. Here the groups of rows r and r + 1, for even r, lie at byte r * row_step,
/// and the next groups of these rows 4 * step further on. `depth` is the number of words in a row, a multiple of 2.
template <int ROWS>
NOINLINE void multiply_add_tile(float* rows, const Floats* factor, const char* a, long row_step, long step,
                                const float* panel, int depth, Floats* maximum) {
  Floats acc[ROWS][VECTORS], blocks[ROWS / 2][2 * VECTORS];
  begin_sums<ROWS>(acc, rows, factor);
  UNROLL for (int r = 0; r < ROWS / 2; ++r) {
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      blocks[r][2 * v] = low_halves(acc[2 * r][v], acc[2 * r + 1][v]);
      blocks[r][2 * v + 1] = high_halves(acc[2 * r][v], acc[2 * r + 1][v]);
    }
  }
#pragma clang loop unroll_count(2)
  for (int i = 0; i < depth; i += GROUP_WORDS) {
    Floats groups[ROWS / 2];
    UNROLL for (int r = 0; r < ROWS / 2; ++r) {
      groups[r] = load<Floats>(reinterpret_cast<const float*>(a + 2 * r * row_step));
    }
    UNROLL for (int v = 0; v < 2 * VECTORS; ++v) {
      const Floats b = load<Floats>(panel + v * VECTOR_WIDTH);
      UNROLL for (int r = 0; r < ROWS / 2; ++r) blocks[r][v] = multiply_add_groups(blocks[r][v], groups[r], b);
    }
    a += 4 * step;
    panel += GROUP_WORDS * PANEL;
  }
  UNROLL for (int r = 0; r < ROWS / 2; ++r) {
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      acc[2 * r][v] = low_halves(blocks[r][2 * v], blocks[r][2 * v + 1]);
      acc[2 * r + 1][v] = high_halves(blocks[r][2 * v], blocks[r][2 * v + 1]);
    }
  }
  end_sums<ROWS>(acc, rows, maximum);
}

#include "common/attention/kernels/neon/half.h"

INLINE Floats low_shorts(Shorts a, Shorts b) {
  return reinterpret_cast<Floats>(Shorts(__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)));
}
INLINE Floats high_shorts(Shorts a, Shorts b) {
  return reinterpret_cast<Floats>(Shorts(__builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)));
}

struct Tile : HalfTile {
  using HalfTile::HalfTile;

  // Packs Q. The family's panels have a row of words after the other; here the two words of a group are neighbours.
  INLINE void begin() {
    HalfTile::begin();
    const float* const end = q_panels + (queries + PANEL - 1) / PANEL * PANEL * DEPTH;
    for (float* two = q_panels; two < end; two += 2 * PANEL) {
      Floats first[VECTORS], second[VECTORS];
      UNROLL for (int v = 0; v < VECTORS; ++v) {
        first[v] = load<Floats>(two + v * VECTOR_WIDTH);
        second[v] = load<Floats>(two + PANEL + v * VECTOR_WIDTH);
      }
      UNROLL for (int v = 0; v < VECTORS; ++v) {
        store(two + 2 * v * VECTOR_WIDTH, low_lanes(first[v], second[v]));
        store(two + (2 * v + 1) * VECTOR_WIDTH, high_lanes(first[v], second[v]));
      }
    }
  }

  // Copies `count` rows of K to k_block, from row `to` of k_block on.
  INLINE void copy_rows(const char* rows, long step, int count, int to = 0) {
    for (int r = 0; r < count; ++r) {
      float* const key = k_block + (to + r) / 2 * 2 * ROW_WORDS + (to + r) % 2 * GROUP_WORDS;
      for (int d = 0; d < DEPTH; d += GROUP_WORDS) {
        store(key + 2 * d, load<Group>(reinterpret_cast<const float*>(rows + r * step) + d));
      }
    }
  }

  // Copies `keys` rows of V from `first_key` on to v_block. Numbers of keys that the last group lacks are zeros.
  INLINE void stage_pairs(int first_key, int keys) {
    for (int key = 0; key < keys; key += GROUP) {
      const unsigned short* from[GROUP];
      UNROLL for (int i = 0; i < GROUP; ++i) {
        const int there = min(key + i, keys - 1);
        from[i] = static_cast<const unsigned short*>(p.v) + row_of(p.v_strides, first_key + there);
      }
      float* to = v_block + key / 2 * ROW_WORDS;
      for (int d = 0; d < HEAD_DIM; d += 8, to += 8 * GROUP_WORDS) {
        Shorts rows[GROUP];
        UNROLL for (int i = 0; i < GROUP; ++i) rows[i] = key + i < keys ? load<Shorts>(from[i] + d) : Shorts{};
        const Floats pairs[4] = {low_shorts(rows[0], rows[1]), low_shorts(rows[2], rows[3]),
                                 high_shorts(rows[0], rows[1]), high_shorts(rows[2], rows[3])};
        UNROLL for (int i = 0; i < 4; i += 2) {
          store(to + i * VECTOR_WIDTH, low_lanes(pairs[i], pairs[i + 1]));
          store(to + (i + 1) * VECTOR_WIDTH, high_lanes(pairs[i], pairs[i + 1]));
        }
      }
    }
  }

  INLINE void softmax(int panel, int begin, int keys, const Floats (&new_maximum)[VECTORS], Floats (&alpha)[VECTORS]) {
    weigh_fours<3>(
        panel, begin, keys, new_maximum, alpha,
        [](const Floats(&weights)[4], Floats(&packed)[2]) INLINE_LAMBDA {
          const Floats low = words::to_pairs(weights[0], weights[1]), high = words::to_pairs(weights[2], weights[3]);
          packed[0] = low_lanes(low, high);
          packed[1] = high_lanes(low, high);
        },
        [&](int number, const Floats(&packed)[VECTORS][2]) INLINE_LAMBDA {
          float* const to = scores + number * GROUP_WORDS * PANEL;
          UNROLL for (int i = 0; i < 2 * VECTORS; ++i) store(to + i * VECTOR_WIDTH, packed[i / 2][i % 2]);
        });
  }

  // O = O * alpha + V^T weights.
  INLINE void accumulate(int panel, int begin, int keys, const Floats (&alpha)[VECTORS]) {
    float* o = o_panels + panel * HEAD_DIM * PANEL;
    const int first = begin / GROUP, depth = ((keys + GROUP - 1) / GROUP - first) * GROUP_WORDS;
    for (int column = 0, rows = 0; column < HEAD_DIM; column += rows) {
      rows = columns_of_tile(HEAD_DIM - column);
      const float* const v = v_block + first * 2 * ROW_WORDS + column * GROUP_WORDS;
      multiply_add(rows, o + column * PANEL, alpha, reinterpret_cast<const char*>(v), GROUP_WORDS * WORD_BYTES,
                   ROW_BYTES / 2, scores + first * GROUP_WORDS * PANEL, depth, nullptr);
    }
  }
};

}  // namespace

#include "common/attention/kernels/tuned/forward.h"
