// The memory layout that host and kernel of Metal's `tuned` share. This file includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

/// Threads of a threadgroup, and threadgroup memory in bytes; in_type is an ElementType. A block of K and a block of V
/// are [block_c][row], in elements. If 32 KB do not hold both blocks, the blocks take turns in one buffer. Q has a
/// buffer of its own, [block_r][row], only if a lane has no registers for its part of Q.
struct MetalTunedLayout {
  int row;           // elements of a row in threadgroup memory: 16 bytes more than head_dim, against bank conflicts
  int threads;       // a simdgroup has 8 rows
  bool q_registers;  // Q stays in registers
  int buffers;       // 2: a buffer for K and a buffer for V; 1: one for both
  /// Byte offsets of K and V (Q begins at 0), and of flags: one for each row of Q, and two for each simdgroup. `bytes`
  /// is the total size.
  int k, v, flags, bytes;

  constexpr MetalTunedLayout(int head_dim, int block_r, int block_c, int in_type)
      : row(head_dim + (in_type == 0 ? 4 : 8)),
        threads(block_r / 8 * 32),
        q_registers(head_dim <= 128),
        buffers(2),
        k(0),
        v(0),
        flags(0),
        bytes(0) {
    const int row_bytes = row * (in_type == 0 ? 4 : 2), block = block_c * row_bytes;
    k = q_registers ? 0 : block_r * row_bytes;
    const int flag_bytes = (block_r + 2 * (threads / 32) + 3) / 4 * 16;
    if (k + 2 * block + flag_bytes > 32768) buffers = 1;
    v = buffers == 1 ? k : k + block;
    flags = k + buffers * block;
    bytes = flags + flag_bytes;
  }
};
