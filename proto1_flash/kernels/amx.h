// What host and kernel of the cpu's `amx` kernel share. No other headers than the kernels' own.
#pragma once

#include "proto1_flash/kernels/flash.h"

/// Threadgroup memory, in bytes. Rows, keys and columns are rounded up to what two tiles hold.
struct AmxLayout {
  static constexpr long long pair = 32;  // rows or columns of two tiles, and bf16 values in a row of one

  long long dim, rows, keys;
  long long q, o, maximum, sums, scores, weights, k, v, bytes;

  constexpr AmxLayout(long long head_dim, long long block_r, long long block_c)
      : dim(flash_round_up(head_dim, pair)),
        rows(flash_round_up(block_r, pair)),
        keys(flash_round_up(block_c, pair)),
        q(0),
        o(q + rows * dim * 2),
        maximum(o + rows * dim * 4),
        sums(maximum + rows * 4),
        scores(sums + rows * 64),
        weights(scores + pair * keys * 4),
        k(weights + pair * keys * 2),
        v(k + dim * keys * 2),
        bytes(v + dim * keys * 2) {}
};
