// Parameters and threadgroup memory of the cuda kernel `decode_wgmma`, for host and kernel. This file includes only
// headers of kernels.
#pragma once

#include "common/kernel/tensor_map.h"
#include "common/paged/kernels/decode.h"

/// The dimensions of a map are, innermost first, column, row, panel, head and batch. `row` counts the keys of a
/// sequence or of a page, `batch` counts sequences or pages. A box of K or V has 64 columns. If a page is shorter than
/// BLOCK_C keys, a box has the page's rows and one panel; else it has BLOCK_C rows and all panels. If 64 does not
/// divide head_dim, the tensor has one panel of head_dim columns, and a box has one panel.
///
/// The counters DecodeParams::arrived are [3][batch, kv_heads, tiles]: for each tile how many of its workers have left
/// their parts, how many of its rows have been taken by warps that join parts, and how many of its workers are done
/// with the tile. All are 0 before and after a launch.
struct DecodeWgmmaParams {
  TensorMap k, v;
  FusedDecodeParams decode;  // without APPENDS its `tokens` are not read
};

/// Threadgroup memory in bytes: Q in panels of 64 columns of 16 bits, then `slots` blocks of K or V, then the barriers.
struct DecodeWgmmaLayout {
  static constexpr int barrier_bytes = 512;

  int panels, q_bytes, slot_bytes, slots, barriers, bytes;

  constexpr DecodeWgmmaLayout(int head_dim, int rows, int block_c, int slot_count)
      : panels((head_dim + 63) / 64),
        q_bytes(panels * rows * 128),
        slot_bytes(panels * block_c * 128),
        slots(slot_count),
        barriers(q_bytes + slots * slot_bytes),
        bytes(barriers + barrier_bytes) {}
};
