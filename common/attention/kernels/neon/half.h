// A tile of the family `tuned` whose products take numbers of 16 bits. The kernel has BF16_DOT = 1: as there, Q is not
// scaled, K is not converted, and scores are scaled in the softmax. The kernel includes this file within its namespace,
// after it has defined the template multiply_add_tile<ROWS>().
#pragma once

namespace words {
#include "common/attention/kernels/tuned/tile.h"
}
using words::multiply_add, words::Params;

static_assert(IN_TYPE != F32 && BF16_DOT && VECTOR_WIDTH == 4 && BLOCK_C % 4 == 0);

INLINE Floats low_lanes(Floats a, Floats b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
INLINE Floats high_lanes(Floats a, Floats b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }

struct HalfTile : words::Tile {
  using words::Tile::Tile;

  // Turns scores into weights, and stores the new maximum and sum. alpha is the factor on the outputs so far. Weights
  // of four keys and four queries are packed into two vectors: pack(weights of a key [4], packed [2]). Then put(number,
  // packed [VECTORS][2]) stores the weights of the keys from 4 * number on; it may write over the scores of these and
  // of earlier keys. Weights are 0 before `begin` and from `keys` on.
  template <int DEGREE, typename Pack, typename Put>
  INLINE void weigh_fours(int panel, int begin, int keys, const Floats (&new_maximum)[VECTORS],
                          Floats (&alpha)[VECTORS], const Pack& pack, const Put& put) {
    Floats row_sum[VECTORS] = {}, shift[VECTORS];
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      shift[v] = shift_of(new_maximum[v]);
      float* old_maximum = maximum + panel * PANEL + v * VECTOR_WIDTH;
      alpha[v] = exp4(in_base_4(load<Floats>(old_maximum) - shift[v]));
      store(old_maximum, new_maximum[v]);
    }
    if constexpr (SCALE_LATE) shift_large(begin, keys, shift);
    for (int first = begin / 4 * 4; first < keys; first += 4) {
      Floats packed[VECTORS][2];
      for (int v = 0; v < VECTORS; ++v) {  // unrolled, the loop would need more registers than there are
        Floats weights[4];
        UNROLL for (int i = 0; i < 4; ++i) {
          const bool seen = first + i >= begin && first + i < keys;
          const Floats s = load<Floats>(scores + (first + i) * PANEL + v * VECTOR_WIDTH);
          const Floats distance = SCALE_LATE ? in_base_4(s) - in_base_4(shift[v]) : in_base_4(s - shift[v]);
          weights[i] = seen ? exp4<DEGREE>(distance) : Floats{};
          row_sum[v] += weights[i];
        }
        pack(weights, packed[v]);
      }
      put(first / 4, packed);
    }
    UNROLL for (int v = 0; v < VECTORS; ++v) {
      float* total = sum + panel * PANEL + v * VECTOR_WIDTH;
      store(total, load<Floats>(total) * alpha[v] + row_sum[v]);
    }
  }
};
