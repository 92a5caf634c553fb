// Parameters of the attention kernels, as host and kernel (of every dialect) see them. No other headers are needed, so
// that kernels compile without a standard library.
#pragma once

#ifdef __CUDACC__
#include "common/kernel/cuda.h"  // here, since hooks include this file: they may use what a host's compiler has
#endif

/// Strides in elements; head_dim is contiguous.
struct TensorStrides {
  long long batch, head, row;
};

/// O = softmax(scale Q K^T) V. q, o: [batch, q_heads, q_len, HEAD_DIM]; k, v: [batch, kv_heads, kv_len, HEAD_DIM];
/// lse: [batch, q_heads, q_len], f32, natural log; may be null. Strides make the layout.
///
/// A pair of a query and a key is hidden by the keys hook, by the mask hook, or by a score of -infinity after the score
/// hook. Its weight is 0: what K, V and the hooks' tables have there does not matter, be it NaN, infinity or 1e36. Every
/// other pair is seen, and its score is a number to reckon with, however large or small. A row that sees no key is 0,
/// and its log-sum-exp -infinity, or the sink. A row that sees a score of NaN or +infinity is NaN, and so is its
/// log-sum-exp. NaN and infinity in V reach the rows that see their key, in their own column, and no other row.
struct AttentionParams {
  const void *q, *k, *v;
  void* o;
  float* lse;
  TensorStrides q_strides, k_strides, v_strides, o_strides;
  int batch, q_heads, kv_heads, q_len, kv_len;
  float scale;
  const void* score_data;  // what the hooks want, else null
  int pages;               // of K and V, where a hook gives places on pages; else no limit
};

/// What a hook may want to know of the sequence. All hooks of a kernel share `data`.
struct ScoreContext {
  int batch, head;  // of the query
  int q_heads, q_len, kv_len;
  const void* data;  // AttentionParams::score_data
};

// How many scores a kernel hands to its hook at once (common/attention/kernels/score.h); preprocessor symbols, since a
// hook has only the functions of its own grain.
#define SCORE_ELEMENT 0
#define SCORE_ROW 1
#define SCORE_TILE 2

/// Keys of a sequence from `begin` to before `end`; none where end <= begin.
struct KeyRange {
  int begin, end;
};

/// Where a row of K and V lies: in units of TensorStrides, or coordinates of a tensor map.
struct KeyPlace {
  int batch, head, row;
};
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr long long
    index_of(const TensorStrides& strides, const KeyPlace& place) {
  return place.batch * strides.batch + place.head * strides.head + place.row * strides.row;
}

/// Whether K and V have a row there; a table of pages may say what it likes.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr bool
    is_place(const AttentionParams& params, const KeyPlace& place) {
  return static_cast<unsigned>(place.batch) < static_cast<unsigned>(params.pages);
}

/// The first key beyond those query q may see when causal, before clipping to [0, kv_len]: aligned bottom right.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr int
    causal_end(int q, int q_len, int kv_len) {
  return q + 1 + kv_len - q_len;
}
