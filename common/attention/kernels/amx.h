// The memory layout that host and kernel of amx.cpu.cpp share.
#pragma once

#include "common/attention/kernels/round_up.h"

/// Threadgroup memory, in bytes. A tile register of AMX has 16 rows of 64 bytes. Query rows, keys and columns are
/// rounded up to a multiple of 32, so that tiles are computed in pairs. The rows of a matrix lie an odd number of cache
/// lines apart, so that the 16 rows of a tile fall into different cache sets.
struct AmxLayout {
  static constexpr long long pair = 32;  // rows or f32 columns of two tiles; also the bf16 values in a row of one tile
  static constexpr long long odd_lines(long long bytes) { return (round_up(bytes, 64) / 64 | 1) * 64; }

  long long dim, rows, keys;
  long long q_step, o_step, scores_step, weights_step, k_step, v_step;  // bytes from one row of a matrix to the next
  long long q, o, maximum, sums, scores, weights, k, v, bytes;

  constexpr AmxLayout(long long head_dim, long long block_r, long long block_c)
      : dim(round_up(head_dim, pair)),
        rows(round_up(block_r, pair)),
        keys(round_up(block_c, pair)),
        q_step(odd_lines(dim * 2)),
        o_step(odd_lines(dim * 4)),
        scores_step(odd_lines(keys * 4)),
        weights_step(odd_lines(keys * 2)),
        k_step(odd_lines(keys * 4)),
        v_step(odd_lines(dim * 4)),
        q(0),
        o(q + rows * q_step),
        maximum(o + rows * o_step),
        sums(maximum + rows * 4),
        scores(sums + rows * 64),
        weights(scores + pair * scores_step),
        k(weights + pair * weights_step),
        v(k + dim / 2 * k_step),
        bytes(v + keys / 2 * v_step) {}
};
