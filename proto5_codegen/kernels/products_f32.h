// The layout of the threadgroup memory of products_f32.cuda.cu. The host and the kernel share this header.
#pragma once

#include "proto5_codegen/kernels/generated.h"

/// The length of a block along the dimension of the sum. This dimension is head_dim for Q K^T, and the keys for P V.
constexpr int product_f32_depth = 32;

/// Two panels come first: the high parts and the low parts of a block of K or V. STAGES buffers follow, each with a
/// block of Q or P, and then a block of K or V that is not yet split. Lines along the dimension of the sum are padded,
/// so that a warp's loads meet each bank once. The result is a tile of `rows` x `columns`.
struct ProductF32Layout {
  int panel_bytes, buffers;
  int a_line_bytes, b_line_bytes;
  int b;  // the byte offset of the block of K or V in a buffer
  int buffer_bytes, bytes;

  constexpr ProductF32Layout(int work, int rows, int columns, int stages)
      : panel_bytes(columns * product_f32_depth * 4),
        buffers(2 * panel_bytes),
        a_line_bytes((product_f32_depth + 4) * 4),
        b_line_bytes(work == WORK_SCORES ? a_line_bytes : columns * 4),
        b(rows * a_line_bytes),
        buffer_bytes(b + (work == WORK_SCORES ? columns : product_f32_depth) * b_line_bytes),
        bytes(buffers + stages * buffer_bytes) {}
};
