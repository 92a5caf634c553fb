// The memory layout that host and kernel of the cpu's `tuned` variant share. This file includes only headers of
// kernels.
#pragma once

#include "common/attention/kernels/round_up.h"

/// Threadgroup memory: offsets and size, in 4-byte words; every region starts on a cache line. The register tile is
/// tile_vectors vectors of queries by tile_rows rows. In the product Q K^T a row is a key, in the product P V a row is
/// a column of V. bf16_dot says that the kernel multiplies pairs of bf16. copy_k says that the kernel works on a copy
/// of a block of K.
struct TunedLayout {
  static constexpr long long line = 16;  // words of a cache line

  // A register tile has main_rows rows, or tail_rows where fewer rows are left. With tile_vectors > 1, both sizes have
  // at least 8 accumulators (vectors x rows). Two multiply-add units with a latency of 4 need 8 accumulators to stay
  // busy.
  long long vectors, panel, main_rows, tail_rows = 4;
  // The distance from one row of k_block or v_block to the next: an odd number of cache lines, so that consecutive rows
  // fall into different cache sets.
  long long row_words;
  long long q_panels, o_panels, maximum, sum, scores, k_block, v_block, words;

  constexpr TunedLayout(long long head_dim, long long block_r, long long block_c, long long vector_width,
                        long long tile_vectors, long long tile_rows, bool bf16_dot, bool copy_k)
      : vectors(tile_vectors),
        panel(tile_vectors * vector_width),
        main_rows(tile_rows),
        row_words(0),
        q_panels(0),
        o_panels(0),
        maximum(0),
        sum(0),
        scores(0),
        k_block(0),
        v_block(0),
        words(0) {
    row_words = (round_up(head_dim, line) / line | 1) * line;
    const long long rows = block_c + tail_rows - 1;  // the last register tile may reach beyond the block
    o_panels = q_panels + head_dim * block_r;
    maximum = o_panels + head_dim * block_r;
    sum = maximum + round_up(block_r, line);
    scores = sum + round_up(block_r, line);
    k_block = scores + round_up(rows * panel, line);
    v_block = k_block + (copy_k ? rows : tail_rows) * row_words;
    words = v_block + (bf16_dot ? (block_c + 1) / 2 : block_c) * row_words;
  }
};
