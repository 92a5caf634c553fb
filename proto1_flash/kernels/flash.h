// What host and kernels of proto1_flash share: how threadgroup memory is laid out. No other headers, so that kernels
// compile without a standard library. Offsets and sizes are in 4-byte words on the cpu, in bytes on the GPU.
#pragma once

constexpr long long flash_round_up(long long n, long long to) { return (n + to - 1) / to * to; }

/// Of the `tiled_scalar` and `tiled_vector` variants.
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

/// Of the `tuned` variant on the cpu. tile_vectors and tile_rows are its register tile: vectors of queries by rows of
/// keys or columns. bf16_dot says that the kernel multiplies pairs of bf16, copy_k that it works on a copy of a block
/// of K. Every region starts on a cache line.
struct TunedLayout {
  static constexpr long long line = 16;  // words of a cache line

  // Both tiles have the 8 accumulators that keep two multiply-add units with a latency of 4 busy, if tile_vectors > 1.
  long long vectors, panel, main_rows, tail_rows = 4;
  // An odd number of cache lines, so that consecutive rows fall into different cache sets.
  long long row_words;
  long long q_panels, o_panels, maximum, sum, scores, k_block, v_block, words;

  constexpr TunedLayout(long long head_dim, long long block_r, long long block_c, long long vector_width,
                        long long tile_vectors, long long tile_rows, bool bf16_dot, bool copy_k)
      : vectors(tile_vectors),
        panel(tile_vectors * vector_width),
        main_rows(tile_rows),
        row_words(0),
        q_panels(0),
        o_panels(0),
        maximum(0),
        sum(0),
        scores(0),
        k_block(0),
        v_block(0),
        words(0) {
    row_words = (flash_round_up(head_dim, line) / line | 1) * line;
    const long long rows = block_c + tail_rows - 1;  // the last tile of a block may reach beyond it
    o_panels = q_panels + head_dim * block_r;
    maximum = o_panels + head_dim * block_r;
    sum = maximum + flash_round_up(block_r, line);
    scores = sum + flash_round_up(block_r, line);
    k_block = scores + flash_round_up(rows * panel, line);
    v_block = k_block + (copy_k ? rows : tail_rows) * row_words;
    words = v_block + (bf16_dot ? (block_c + 1) / 2 : block_c) * row_words;
  }
};

/// Threads of a threadgroup of the `naive` variant on the GPU.
constexpr int naive_threads = 128;

/// Of the `mma_sync` variant on the GPU; in_type is an ElementType. Tiles are [rows][row_bytes].
struct MmaSyncLayout {
  static constexpr long long stages = 2;  // of K and V

  long long dim;        // head_dim, rounded up to the 32 bytes that one matrix product takes of a row
  long long row_bytes;  // an odd number of 16 bytes, so that 8 rows next to each other share no bank
  long long warp_rows;  // that one warp computes: 32 where registers allow it, so that keys are read half as often
  long long threads;
  long long kv_bytes;  // of one block
  long long q, k, v, bytes;

  constexpr MmaSyncLayout(long long head_dim, long long block_r, long long block_c, int in_type)
      : dim(flash_round_up(head_dim, in_type == 0 ? 8 : 16)),
        row_bytes((dim * (in_type == 0 ? 4 : 2) / 16 | 1) * 16),
        warp_rows(row_bytes <= 256 + 16 && block_r % 32 == 0 ? 32 : 16),
        threads(block_r / warp_rows * 32),
        kv_bytes(block_c * row_bytes),
        q(0),
        k(block_r * row_bytes),
        v(k + stages * kv_bytes),
        bytes(v + stages * kv_bytes) {}
};
