// The memory layout that host and kernel of Metal's `decode` share. This file includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

/// A tile has `rows` rows, a multiple of 8. A team is rows / 8 simdgroups, each of which has 8 rows of the tile. Each
/// team takes 8 keys at a time. The teams join their results at the tile's end. Each team has memory for a block of 8
/// keys, [8][row] elements: first for the keys' rows of K, later for their rows of V. Q, [rows][row], stays in
/// threadgroup memory only if a lane has too few registers for its part of Q.
struct MetalDecodeLayout {
  int row;           // elements of a row in threadgroup memory: head_dim, and 16 bytes more against bank conflicts
  bool q_registers;  // Q stays in registers
  int teams, threads;
  /// kv: byte offset of the teams' blocks; Q begins at 0. flags: byte offset of the flags; there is one flag for each
  /// row of Q, and one for each simdgroup. bytes: the size of all threadgroup memory.
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
    // The memory of the blocks has two more uses. At the beginning of a tile, Q passes through this memory if it stays
    // in registers. At a tile's end, a team writes there, for each row, its outputs and three more numbers, as floats.
    int shared = teams * 8 * row_bytes;
    const int of_q = rows * row_bytes, of_team = teams > 1 ? rows * (head_dim + 3) * 4 : 0;
    if (q_registers && shared < of_q) shared = of_q;
    if (shared < of_team) shared = of_team;
    flags = kv + shared;
    bytes = flags + (rows + 4) * 4;
  }
};
