// AttentionRow, the argument of write_exact_row() in CUDA: a row of the attention that AttentionParams describe, with
// all hooks except before.h.
#pragma once

#include "common/attention/kernels/exact_row.h"
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/pages.h"
#include "common/attention/kernels/rotate.h"
#include "common/attention/kernels/score.h"
#include "common/attention/kernels/sink.h"

#ifndef KEYS_END_EARLY
#define KEYS_END_EARLY 0
#define end_of_keys(context) 0
#endif

struct AttentionRow {
  const AttentionParams& p;
  const ScoreContext context;
  const int query, kv_head;
  const KeyRange keys;

  DEVICE AttentionRow(const AttentionParams& params, int batch, int head, int number)
      : p(params),
        context{batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data},
        query(number),
        kv_head(head / (p.q_heads / p.kv_heads)),
        keys(clipped(visible_keys(query, context))) {}

  DEVICE KeyRange clipped(const KeyRange& range) const { return {max(range.begin, 0), min(range.end, p.kv_len)}; }

  DEVICE float score_of(int key) const {
    if (!MASK_IS_NONE && !visible(query, key, context)) return -infinity();
    const KeyPlace place = place_of_key(key, kv_head, context);
    if (!is_place(p, place)) return not_a_number();
    const long long q = index_of(p.q_strides, {context.batch, context.head, query});
    const long long k = index_of(p.k_strides, place);
    const auto load_q = [&](int d) { return load_float<IN_TYPE>(p.q, q + d); };
    const auto load_k = [&](int d) { return load_float<IN_TYPE>(p.k, k + d); };
    float dot = 0;
#pragma unroll 4
    for (int d = 0; d < HEAD_DIM; ++d)
      dot += rotate_query(load_q, query, d, context) * rotate_key(load_k, key, d, context);
    return score(__fmul_rn(dot, p.scale), query, key, context);
  }
  DEVICE float value_of(int key, int d) const {
    const KeyPlace place = place_of_key(key, kv_head, context);
    return !is_place(p, place) ? not_a_number() : load_float<IN_TYPE>(p.v, index_of(p.v_strides, place) + d);
  }
  // If end_of_keys() is negative (keys.h), the row becomes NaN through its sink.
  DEVICE float sink() const {
    if (KEYS_END_EARLY && end_of_keys(context) < 0) return not_a_number();
    return SINK_IS_NONE ? -infinity() : sink_logit(context);
  }
  DEVICE void store(int d, float value) const {
    store_float<OUT_TYPE>(p.o, index_of(p.o_strides, {context.batch, context.head, query}) + d, value);
  }
  DEVICE void store_lse(float lse) const {
    if (p.lse) p.lse[(static_cast<long long>(context.batch) * p.q_heads + context.head) * p.q_len + query] = lse;
  }
};
