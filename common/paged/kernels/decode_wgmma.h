// Parameters and threadgroup memory of the cuda kernel `decode_wgmma`, for host and kernel. This file includes only
// headers of kernels.
#pragma once

#include "common/kernel/tensor_map.h"
#include "common/paged/kernels/decode.h"

/// The dimensions of a map are, innermost first, column, row, panel, head and batch. `row` counts the keys of a
/// sequence or of a page, `batch` counts sequences or pages. A box of K or V has 64 columns. If a page is shorter than
/// BLOCK_C keys, a box has the page's rows and one panel; else it has BLOCK_C rows and all panels. If 64 does not
/// divide head_dim, the tensor has one panel of head_dim columns, and a box has one panel. In the map of a cache of 8
/// bits a column is two elements, and the tensor has one panel of all columns; a box has all columns.
///
/// For a tile of two workers the two counters of DecodeParams::arrived say how many have left the first and the
/// last 64 rows.
struct DecodeWgmmaParams {
  TensorMap k, v;
  FusedDecodeParams decode;  // without APPENDS its `tokens` are not read
};

/// Threadgroup memory in bytes: Q in panels of 64 columns of 16 bits; `slots` blocks of K or V, as they are copied; the
/// barriers. With a cache of 8 bits: Q; `operand_slots` blocks of K or V in panels, converted to f16; `slots` blocks as
/// they are copied, [keys][head_dim]; scales of the rows, and for each block that is under way, of its keys in K and V;
/// the barriers. `turns`: the function constant TURNS, which divides the number of blocks that are operands.
struct DecodeWgmmaLayout {
  static constexpr int barrier_bytes = 512;

  int panels, q_bytes, block_bytes;  // of a block in panels
  int operand_slots, slots, slot_bytes, copies, scales, barriers, bytes;

  constexpr DecodeWgmmaLayout(int head_dim, int rows, int block_c, int slot_count, int bytes_of_kv, int turns)
      : panels((head_dim + 63) / 64),
        q_bytes(panels * rows * 128),
        block_bytes(panels * block_c * 128),
        operand_slots(bytes_of_kv > 1 ? 0 : (head_dim > 128 ? 3 : 4) * turns),
        slots(slot_count),
        slot_bytes(bytes_of_kv > 1 ? block_bytes : block_c * head_dim),
        copies(q_bytes + operand_slots * block_bytes),
        scales(copies + slots * slot_bytes),
        barriers(scales + (bytes_of_kv > 1 ? 0 : 4 * rows + (slots + operand_slots) * block_c)),
        bytes(barriers + barrier_bytes) {}
};
