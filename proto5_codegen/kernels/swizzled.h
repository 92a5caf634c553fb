// The cuda dialect: tiles of 16-bit elements for wgmma. Threads copy the tiles, so a kernel needs no tensor maps. The
// layout is the one that tensor copies (TMA) make (common/kernel/wgmma.h): panels [rows][128 bytes] of 64 columns. A
// row has eight chunks of 16 bytes; chunk c of row r lies at the place of chunk c ^ (r % 8).
#pragma once

#include "common/kernel/ampere.h"
#include "common/kernel/wgmma_named.h"

/// Returns the byte offset, in a panel, of chunk `chunk` of row `row`.
DEVICE int swizzled(int row, int chunk) { return row * PANEL_ROW_BYTES + (chunk ^ row % 8) * 16; }

/// All THREADS threads copy ROWS rows of COLUMNS elements to panels at `tile`. Rows are `row_elements` elements apart.
/// Rows from `rows` on and columns from `columns` on become zeros. `columns` and `row_elements` are multiples of 8, so
/// that a 16-byte chunk is aligned, and exists as a whole or not at all.
template <int ROWS, int COLUMNS, int THREADS>
DEVICE void copy_panels(unsigned char* tile, const void* from, long long row_elements, int rows, int columns) {
  constexpr int CHUNKS = COLUMNS / 8, AT_ONCE = THREADS / CHUNKS;  // chunks of a row; rows at once
  static_assert(THREADS % CHUNKS == 0 && AT_ONCE % 8 == 0 && ROWS % AT_ONCE == 0);
  const int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  const char* source = static_cast<const char*>(from) + (first * row_elements + chunk * 8) * 2;
  const unsigned to = shared_address(tile) + chunk / 8 * ROWS * PANEL_ROW_BYTES + swizzled(first, chunk % 8);
  UNROLL for (int row = 0; row < ROWS; row += AT_ONCE) {
    copy_16(to + row * PANEL_ROW_BYTES, source, first + row < rows && chunk * 8 < columns);
    source += AT_ONCE * row_elements * 2;
  }
}

/// Stores the results of a product (wgmma.h) times `factor` to rows of a tensor, 16 bytes at a time. The product has
/// COUNT * 2 columns. Rows from `rows` on and columns from `columns` on are not stored. `row` is this thread's first
/// row. `to` is the address of row 0 in the product's first column.
template <int TYPE, int COUNT>
DEVICE void store_results(const float (&x)[COUNT], float factor, void* to, long long row_elements, int row, int rows,
                          int columns) {
  const int quarter = threadIdx.x % 4;
  UNROLL for (int r = 0; r < 2; ++r) {
    const bool there = row + r * 8 < rows;
    char* const target = static_cast<char*>(to) + (row + r * 8) * row_elements * 2;
    UNROLL for (int group = 0; group < COUNT / 4; group += 4) {
      unsigned words[4];
      UNROLL for (int i = 0; i < 4; ++i) {
        const float* const pair = x + 4 * (group + i) + 2 * r;
        words[i] = pack<TYPE>(pair[0] * factor, pair[1] * factor);
      }
      transpose_quad(words);
      const int column = (group + quarter) * 8;
      if (there && column < columns) {
        *reinterpret_cast<uint4*>(target + column * 2) = uint4{words[0], words[1], words[2], words[3]};
      }
    }
  }
}
