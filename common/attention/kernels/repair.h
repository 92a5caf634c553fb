// Computes a row anew if a tile of a cpu kernel gets the row wrong. A tile multiplies the values of a hidden key by a
// weight of 0, which gives NaN if a value is infinite or NaN. A tile also divides sums that may have overflowed. Each
// fault leaves an output that is not finite. The kernels look for such outputs, with one operation for each output.
//
// A kernel includes the hooks before this file, because a hook must not be included twice.
#pragma once

#include "common/attention/kernels/exact_row_cpu.h"

/// Writes the outputs of a row whose scores and sink are finite or -infinity.
static NOINLINE void repair_row(const AttentionParams& p, int batch, int head, int query) {
  const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data};
  const int kv_head = head / (p.q_heads / p.kv_heads);
  const long long to = index_of(p.o_strides, {batch, head, query});
  const auto elements = [](const void* tensor, long long row) {
    return [=](int d) { return load_float<IN_TYPE>(tensor, row + d); };
  };
  const auto row_of_key = [&](const TensorStrides& strides, int key) {
    return index_of(strides, place_of_key(key, kv_head, context));
  };
  const auto q = elements(p.q, index_of(p.q_strides, {batch, head, query}));
  const auto score_of = [&](int key) {
#pragma clang fp reassociate(on)
    if (!MASK_IS_NONE && !::visible(query, key, context)) return hidden_score;
    const auto k = elements(p.k, row_of_key(p.k_strides, key));
    double dot = 0;
    VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) {
      dot += double{rotate_query(q, query, d, context)} * rotate_key(k, key, d, context);
    }
    return hooked_score(static_cast<float>(p.scale * dot), query, key, context);
  };
  KeyRange keys = visible_keys(query, context);
  if (keys.begin < 0) keys.begin = 0;
  if (keys.end > p.kv_len) keys.end = p.kv_len;
  exact_row(
      keys, SINK_IS_NONE ? hidden_score : sink_logit(context), score_of,
      [&](int key) { return elements(p.v, row_of_key(p.v_strides, key)); },
      [&](int d, float output) { store_float<OUT_TYPE>(p.o, to + d, output); });
}
