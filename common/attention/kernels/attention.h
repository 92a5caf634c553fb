// Parameters of the attention kernels, for the host and for kernels of every dialect. Kernels compile without a
// standard library, so this file includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

#ifdef __CUDACC__
#include "common/kernel/cuda.h"  // for hooks, which may call its builtins
#endif

/// Strides in elements; head_dim is contiguous.
struct TensorStrides {
  INT64 batch, head, row;
};

/// O = softmax(scale Q K^T) V. q, o: [batch, q_heads, q_len, HEAD_DIM]; k, v: [batch, kv_heads, kv_len, HEAD_DIM];
/// lse: [batch, q_heads, q_len], f32, natural log; may be null. The strides give the layout.
///
/// Hooks are functions of a kernel that an experiment may replace. A pair of a query and a key is hidden if the keys
/// hook (keys.h) or the mask hook (mask.h) hides it, or if the score hook (score.h) returns -infinity. A hidden pair
/// has weight 0, whatever the values of K, V and the hooks' tables for this pair, even NaN, infinity or 1e36. Every
/// other pair is seen, and its score counts, however large or small. A row that sees no key is 0, and its log-sum-exp
/// is -infinity, or the sink of its head (sink.h). A row that sees a score of NaN or +infinity is NaN, and so is its
/// log-sum-exp. A NaN or an infinity in V changes only its own column of O, in the rows that see its key.
struct AttentionParams {
  const GLOBAL void *q, *k, *v;
  GLOBAL void* o;
  GLOBAL float* lse;
  TensorStrides q_strides, k_strides, v_strides, o_strides;
  int batch, q_heads, kv_heads, q_len, kv_len;
  float scale;
  const GLOBAL void* score_data;  // data of the hooks, or null
  int pages;  // how many pages K and V have, if a pages hook (pages.h) uses pages; else the largest int
};

/// What a hook may read about a sequence. All hooks of a kernel share `data`.
struct ScoreContext {
  int batch, head;  // of the query
  int q_heads, q_len, kv_len;
  const GLOBAL void* data;  // AttentionParams::score_data
};
#ifdef __METAL_VERSION__
typedef ScoreContext HookContext;         // for members of structs and results of functions
#define ScoreContext thread ScoreContext  // hooks write ScoreContext& in every dialect; Metal needs `thread`
#endif

// Values of SCORE_GRAIN: how many scores a kernel hands to its hook at once (score.h). They are macros for #if, because
// a hook defines only the function of its own grain.
#define SCORE_ELEMENT 0
#define SCORE_ROW 1
#define SCORE_TILE 2

/// The keys [begin, end) of a sequence; no keys if end <= begin.
struct KeyRange {
  int begin, end;
};

/// The place of a row in K and V: the factors of the three strides of TensorStrides, or coordinates in a tensor map.
struct KeyPlace {
  int batch, head, row;
};
constexpr INT64 index_of(const LOCAL TensorStrides& strides, const LOCAL KeyPlace& place) {
  return place.batch * strides.batch + place.head * strides.head + place.row * strides.row;
}

/// Whether K and V have the page `place.batch`: a table of pages can hold any number. Without pages the result is true.
constexpr bool is_place(const LOCAL AttentionParams& params, const LOCAL KeyPlace& place) {
  return static_cast<unsigned>(place.batch) < static_cast<unsigned>(params.pages);
}

/// Returns one more than the last key that query q may see with a causal mask, which is aligned to the bottom right.
/// The result is not clipped to [0, kv_len].
constexpr int causal_end(int q, int q_len, int kv_len) { return q + 1 + kv_len - q_len; }
