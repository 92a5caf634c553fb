// The memory layout that host and kernel of Metal's `chunk_h` share. This file includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

/// Threadgroup memory, in floats: keys [step][key_row] and values [step][value_row] of `step` tokens.
struct MetalChunkLayout {
  int step, key_row, value_row, values, floats;

  constexpr MetalChunkLayout(int head_dim, int value_dim)
      : step(head_dim + value_dim > 480 ? 8 : 16),
        key_row(head_dim + 4),
        value_row(value_dim + 4),
        values(step * key_row),
        floats(values + step * value_row) {}
};
