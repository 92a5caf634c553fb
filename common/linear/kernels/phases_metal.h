// Numbers that host and kernels of Metal's linear attention share. This file includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

/// Threads of a threadgroup of chunk_h, chunk_o, scan and fused.
constexpr CONSTANT int metal_linear_threads = 256;

/// Threadgroup memory of chunk_h, in floats: keys [step][key_row] and values [step][value_row] of `step` tokens.
struct MetalChunkLayout {
  int step, key_row, value_row, values, floats;

  constexpr MetalChunkLayout(int head_dim, int value_dim)
      : step(head_dim + value_dim > 480 ? 8 : 16),
        key_row(head_dim + 4),
        value_row(value_dim + 4),
        values(step * key_row),
        floats(values + step * value_row) {}
};

/// Threadgroup memory of fused, in floats: a slice of the state [head_dim][row], and key sums [head_dim].
struct MetalFusedLayout {
  int slice, row, key_sums, floats;  // slice: the columns of the state that a threadgroup has

  constexpr MetalFusedLayout(int head_dim)
      : slice(head_dim > 216 ? 16 : 32), row(slice + 4), key_sums(head_dim * row), floats(key_sums + head_dim) {}
};
