// The memory layout that host and kernel of Metal's `decode` share. This file includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

/// A tile has `rows` rows, a multiple of 8. A group of simdgroups, one for each 8 rows, is a team. Teams take 8 keys
/// each at a time, and join their results at the tile's end. A team has a block of 8 keys, [8][row] elements, for K and
/// then for V. Q, [rows][row], has a place of its own only if a lane has no registers for its part of Q.
struct MetalDecodeLayout {
  int row;           // elements of a row in threadgroup memory: 16 bytes more than head_dim, so that rows share no bank
  bool q_registers;  // Q stays in registers
  int teams, threads;
  /// Byte offset of the teams' blocks (Q begins at 0), and of flags: one for each row of Q, and one for each simdgroup.
  /// The size of all.
  int kv, flags, bytes;

  constexpr MetalDecodeLayout(int head_dim, int rows, int element_bytes)
      : row(head_dim + 16 / element_bytes),
        q_registers(head_dim <= 128),
        teams(rows >= 32 ? 1 : 32 / rows),
        threads(0),
        kv(0),
        flags(0),
        bytes(0) {
    const int row_bytes = row * element_bytes;
    kv = q_registers ? 0 : rows * row_bytes;
    while (teams > 1 && kv + teams * 8 * row_bytes + (rows + 4) * 4 > 32768) teams /= 2;
    threads = teams * (rows / 8) * 32;
    // Q comes by way of the blocks. At a tile's end a team leaves its outputs and three numbers of each row there, as
    // floats.
    int shared = teams * 8 * row_bytes;
    const int of_q = rows * row_bytes, of_team = teams > 1 ? rows * (head_dim + 3) * 4 : 0;
    if (q_registers && shared < of_q) shared = of_q;
    if (shared < of_team) shared = of_team;
    flags = kv + shared;
    bytes = flags + (rows + 4) * 4;
  }
};
