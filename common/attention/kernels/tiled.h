// The memory layout that host and kernel of the cpu's `tiled_scalar` and `tiled_vector` variants share. This file
// includes no other headers, so that kernels compile without a standard library.
#pragma once

/// Threadgroup memory: offsets and size, in 4-byte words.
struct TiledLayout {
  long long q, o, k, v, scores, maximum, sum, words;

  constexpr TiledLayout(long long head_dim, long long block_r, long long block_c)
      : q(0),
        o(head_dim * block_r),
        k(o + head_dim * block_r),
        v(k + head_dim * block_c),
        scores(v + head_dim * block_c),
        maximum(scores + block_c),
        sum(maximum + block_r),
        words(sum + block_r) {}
};
