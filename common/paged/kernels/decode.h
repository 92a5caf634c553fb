// Parameters and layouts that host and kernels of paged attention share: a few new queries of each sequence attend to
// its cached keys. This file includes only headers of kernels.
//
// The query heads of one key/value head, with all their queries, are the rows of tiles: row = (head in its group) *
// q_len + query. A tile has up to ROWS rows, and a key is read once for all rows of a tile.
//
// The work is a line: all blocks of BLOCK_C keys, ordered by sequence, then key/value head, then tile, then block. Each
// of `workers` threadgroups, the workers, takes a share of the line; two shares differ by at most one block. So the
// work balances for sequences of unlike lengths too. The method is Stream-K (Osama et al. 2023), applied to attention.
// A worker that shares a tile with other workers leaves its result for the tile in memory: this result is a part. These
// workers join the parts, on a GPU together, elsewhere the last to arrive; or a second launch does (as in vLLM's
// PagedAttention V2). Lengths are read on the device, so a captured launch also serves other lengths, up to most_keys.
//
// With APPENDS the last q_len tokens of a sequence are not in the cache yet. The kernel takes these tokens as the
// model's projections write them, and writes their keys and values to the cache. If ROTARY_DIM is not 0, the kernel
// first rotates the queries and the new keys by their positions (RoPE).
#pragma once

#include "common/attention/kernels/attention.h"

#ifdef __CUDACC__
#define SHARED_WITH_HOST __host__ __device__
#else
#define SHARED_WITH_HOST
#endif

/// Where cached keys lie. Contiguous (PAGE_SIZE = 0): [batch, kv_heads, keys, HEAD_DIM] by strides. Paged: .batch is
/// the stride of a page, .row is the stride of a token on its page, and key i of sequence b lies on page
/// table[b * max_pages + i / PAGE_SIZE].
struct KvCacheView {
  GLOBAL void *k, *v;
  TensorStrides k_strides, v_strides;
  const GLOBAL int* table;
  int max_pages;
  int pages;  // pages of the cache; on a GPU, a row of O that sees a key on a page outside 0 to pages - 1 is NaN
  /// Caches of 8 bits: an element is the stored number times the scale of the element's page and head. The scales are
  /// [pages, kv_heads], or [batch, kv_heads] if the cache is contiguous.
  const GLOBAL float *k_scales, *v_scales;
};

/// O = softmax(scale Q K^T) V: query i of q_len has the position of key length - q_len + i. With CAUSAL the query sees
/// keys up to its own key. q, o: [batch, q_heads, q_len, HEAD_DIM]; lse: [batch, q_heads, q_len], natural log, may be
/// null. The rows of O of a sequence without keys are 0. Their log-sum-exp is the sink, or -infinity without a sink.
struct DecodeParams {
  const GLOBAL void* q;
  GLOBAL void* o;
  GLOBAL float* lse;
  TensorStrides q_strides, o_strides;
  KvCacheView cache;
  const GLOBAL int* lengths;  // [batch]: a sequence's keys, including the keys of its queries
  /// The most keys of a sequence. On a GPU, if a sequence's length is greater than most_keys or negative, the
  /// sequence's rows of O are NaN.
  int most_keys;
  int batch, q_heads, kv_heads, q_len;
  float scale;
  const GLOBAL void* score_data;  // the hooks' data, or null
  int workers;
  /// A worker leaves at most two parts. Rows of part_o are not divided by the softmax's sum. In part_stats each row has
  /// the number that the softmax subtracts from the row's scores (in a unit that the kernel chooses), and the sum.
  GLOBAL float* part_o;      // [2 * workers, ROWS, HEAD_DIM]
  GLOBAL float* part_stats;  // [2 * workers, ROWS, 2]
  /// [2][batch, kv_heads, tiles], 0 before and after a launch. With JOIN_LAST the first counter of a tile says how many
  /// of its parts are in memory. The second is of the cuda kernels, whose workers join a tile together: how many
  /// workers are done with the tile.
  GLOBAL unsigned* arrived;
};

/// The newest q_len tokens of each sequence, in Q's type: [batch, kv_heads, q_len, HEAD_DIM]. Token i is key length -
/// q_len + i; a token is ignored if its key's number is negative. Cosines and sines: [positions, ROTARY_DIM / 2], with
/// at least as many positions as the longest sequence has keys.
struct NewTokens {
  const GLOBAL void *k, *v;
  TensorStrides k_strides, v_strides;
  const GLOBAL float *cosines, *sines;
};
struct FusedDecodeParams : DecodeParams {
  NewTokens tokens;
};
template <bool APPENDS_TOKENS>
struct DecodeParamsOf {
  using type = DecodeParams;
};
template <>
struct DecodeParamsOf<true> {
  using type = FusedDecodeParams;
};
#ifdef __METAL_VERSION__
inline NewTokens tokens_of(thread const DecodeParams& /*params*/) { return {}; }
inline NewTokens tokens_of(thread const FusedDecodeParams& params) { return params.tokens; }
#else
SHARED_WITH_HOST inline NewTokens tokens_of(const DecodeParams& /*params*/) { return {}; }
SHARED_WITH_HOST inline const NewTokens& tokens_of(const FusedDecodeParams& params) { return params.tokens; }
#endif

/// The parameters of the kernel `append`, a separate launch that writes new tokens to the cache and does not rotate the
/// keys.
struct AppendParams {
  KvCacheView cache;
  const GLOBAL void *k, *v;  // [batch, kv_heads, q_len, HEAD_DIM], as NewTokens
  TensorStrides k_strides, v_strides;
  /// [batch]: a sequence's keys, including the new tokens. No token is written if this number is negative or, on a GPU,
  /// above most_keys.
  const GLOBAL int* lengths;
  int most_keys, kv_heads, q_len;
};

/// Returns the first block of the line that a worker takes. The worker takes the blocks up to the next worker's first
/// block. If there are more workers than blocks, the last workers take no block. A line has less than 2^32 blocks:
/// a division of 64 bits is a function call in CUDA, and ptxas serialises `wgmma` in kernels with calls.
SHARED_WITH_HOST constexpr INT64 first_block_of(int worker, int workers, INT64 blocks) {
  if (workers > blocks) return worker < blocks ? worker : blocks;
  const auto all = static_cast<unsigned>(blocks), by = static_cast<unsigned>(workers);
  return static_cast<INT64>(all / by) * worker + all % by * worker / by;
}
/// Returns the worker that takes a block of the line.
SHARED_WITH_HOST constexpr int worker_of(INT64 block, int workers, INT64 blocks) {
  if (workers > blocks) return static_cast<int>(block);
  int shift = 0;
  while (blocks >> shift >= 1 << 16) ++shift;
  int worker = static_cast<int>(static_cast<unsigned>(block >> shift) * static_cast<unsigned>(workers) /
                                static_cast<unsigned>(blocks >> shift));  // about right
  while (worker > 0 && first_block_of(worker, workers, blocks) > block) --worker;
  while (first_block_of(worker + 1, workers, blocks) <= block) ++worker;
  return worker;
}

/// Threadgroup memory of the cuda kernel, in bytes. A row takes 16 bytes more than its elements, so that eight rows
/// begin in different banks.
struct DecodeLayout {
  int dim, row_bytes, q_row_bytes, q_bytes, v, scales, stage_bytes, kv, bytes;

  constexpr DecodeLayout(int head_dim, int rows, int block_c, int stages, int bytes_of_q, int bytes_of_kv)
      : dim((head_dim + 32 / bytes_of_kv - 1) / (32 / bytes_of_kv) * (32 / bytes_of_kv)),
        row_bytes(dim * bytes_of_kv + 16),
        q_row_bytes(dim * bytes_of_q + 16),
        q_bytes(rows * q_row_bytes),
        v(block_c * row_bytes),
        scales(2 * v),
        stage_bytes(scales + (bytes_of_kv == 1 ? 2 * block_c * 4 : 0)),
        kv(stages * q_bytes),
        bytes(0) {
    // At a tile's end the memory of a stage holds the sums of the teams of warps, which merge() adds up (epilogue.h).
    const int teams = rows <= 16 ? 4 : 64 / rows, merge_bytes = teams / 2 * rows * (dim + 8) * 4;
    if (stage_bytes < merge_bytes) stage_bytes = merge_bytes;
    bytes = kv + stages * stage_bytes;
  }
};

/// Threadgroup memory of the cpu kernel, in floats: q and o [rows, head_dim], scores [rows, block_c], maximum and sum
/// [rows] of a tile's rows; the rotated new keys [new_keys, head_dim].
struct CpuDecodeLayout {
  int o, scores, maximum, sum, turned, floats;

  constexpr CpuDecodeLayout(int head_dim, int rows, int block_c, int new_keys = 0)
      : o(rows * head_dim),
        scores(2 * o),
        maximum(scores + rows * block_c),
        sum(maximum + rows),
        turned(sum + rows),
        floats(turned + new_keys * head_dim) {}
};
