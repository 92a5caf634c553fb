// The memory layout that host and kernel of the GPU's `mma_sync` variant share.
#pragma once

#include "common/attention/kernels/round_up.h"

/// The threads of a threadgroup, and the layout of threadgroup memory, in bytes. Q, K and V lie in this memory as
/// [rows][row_bytes]. in_type is an ElementType.
struct MmaSyncLayout {
  static constexpr long long stages = 2;  // buffers for blocks of K, and as many for blocks of V

  long long dim;        // head_dim, rounded up to a multiple of 32 bytes: one matrix product takes 32 bytes of a row
  long long row_bytes;  // an odd multiple of 16: 16 bytes of each of 8 neighbouring rows share no bank
  long long warp_rows;  // rows of a warp: 16, or 32 if registers allow 32, so that keys are read half as often
  long long threads;
  long long kv_bytes;        // of one block of K or V
  long long q, k, v, bytes;  // byte offsets of Q, K and V, and the size of all

  constexpr MmaSyncLayout(long long head_dim, long long block_r, long long block_c, int in_type)
      : dim(round_up(head_dim, in_type == 0 ? 8 : 16)),
        row_bytes((dim * (in_type == 0 ? 4 : 2) / 16 | 1) * 16),
        warp_rows(row_bytes <= 256 + 16 && block_r % 32 == 0 ? 32 : 16),
        threads(block_r / warp_rows * 32),
        kv_bytes(block_c * row_bytes),
        q(0),
        k(block_r * row_bytes),
        v(k + stages * kv_bytes),
        bytes(v + stages * kv_bytes) {}
};
