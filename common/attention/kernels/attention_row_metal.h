// attention_row.h in the Metal dialect.
#pragma once

#include "common/attention/kernels/exact_row_metal.h"
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

INLINE bool is_page(constant AttentionParams& p, KeyPlace place) {
  return static_cast<uint>(place.batch) < static_cast<uint>(p.pages);
}

/// The argument of write_exact_row(), which describes the members.
struct AttentionRow {
  constant AttentionParams& p;
  const HookContext context;
  const int query, kv_head;
  int begin, end;

  AttentionRow(constant AttentionParams& params, int batch, int head, int number)
      : p(params),
        context{batch, head, params.q_heads, params.q_len, params.kv_len, params.score_data},
        query(number),
        kv_head(head / (params.q_heads / params.kv_heads)) {
    const KeyRange range = visible_keys(query, context);
    begin = max(range.begin, 0);
    end = min(range.end, params.kv_len);
  }

  float score_of(int key) const {
    if (!MASK_IS_NONE && !visible(query, key, context)) return -__builtin_inff();
    const KeyPlace place = place_of_key(key, kv_head, context);
    if (!is_page(p, place)) return not_a_number();
    const RowElements<IN_TYPE> q{p.q, index_of(p.q_strides, context.batch, context.head, query)};
    const RowElements<IN_TYPE> k{p.k, index_of(p.k_strides, place.batch, place.head, place.row)};
    Dot dot;
    for (int d = 0; d < HEAD_DIM; ++d) dot.add(rotate_query(q, query, d, context), rotate_key(k, key, d, context));
    const float s = dot.times(p.scale);
    return is_nan(s) ? s : score(s, query, key, context);
  }
  float value_of(int key, int d) const {
    const KeyPlace place = place_of_key(key, kv_head, context);
    if (!is_page(p, place)) return not_a_number();
    return load_float<IN_TYPE>(p.v, index_of(p.v_strides, place.batch, place.head, place.row) + d);
  }
  /// If end_of_keys() is negative (keys.h), the row becomes NaN through its sink.
  float sink() const {
    if (KEYS_END_EARLY && end_of_keys(context) < 0) return not_a_number();
    return SINK_IS_NONE ? -__builtin_inff() : sink_logit(context);
  }
  void store(int d, float value, bool nan) const {
    const long at = index_of(p.o_strides, context.batch, context.head, query) + d;
    if (nan) {
      store_nan<OUT_TYPE>(p.o, at);
    } else {
      store_float<OUT_TYPE>(p.o, at, value);
    }
  }
  void store_lse(float maximum, float sum, bool nan) const {
    if (!p.lse) return;
    const long row = (static_cast<long>(context.batch) * p.q_heads + context.head) * p.q_len + query;
    ::store_lse(p.lse + row, maximum, sum, nan);
  }
};
