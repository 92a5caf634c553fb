// Rows of a tile that are computed anew (exact_row.h).
#pragma once

#include "common/attention/kernels/exact_row.h"
#include "common/paged/kernels/decode/schedule.h"

namespace {

/// A row for write_exact_row(). New keys come from their own tensors, because other threadgroups may write them to the
/// cache at the same time.
struct DecodeRow {
  const Params& p;
  const ScoreContext context;
  const int query, kv_head;
  const KeyRange keys;

  DEVICE DecodeRow(const Params& params, int batch, int head, int number, int length)
      : p(params),
        context{batch, head, p.q_heads, p.q_len, length, p.score_data},
        query(number),
        kv_head(head / (p.q_heads / p.kv_heads)),
        keys(clipped(visible_keys(query, context))) {}

  DEVICE KeyRange clipped(const KeyRange& range) const { return {max(range.begin, 0), min(range.end, context.kv_len)}; }

  // Returns an element of a row, rotated by the angles of the row's position.
  template <typename Load>
  DEVICE float turned(Load load, int position, int d) const {
    const float x = load(d);
    if constexpr (APPENDS && ROTARY_DIM > 0) {
      constexpr int pairs = ROTARY_DIM / 2;
      if (d >= ROTARY_DIM || position < 0) return x;
      const bool second = INTERLEAVED ? d % 2 != 0 : d >= pairs;
      const long long at = static_cast<long long>(position) * pairs + (INTERLEAVED ? d / 2 : second ? d - pairs : d);
      const float y = load(INTERLEAVED ? d ^ 1 : second ? d - pairs : d + pairs);
      const float sine = second ? tokens_of(p).sines[at] : -tokens_of(p).sines[at];
      float place;  // memory for an element of IN_TYPE
      store_float<IN_TYPE>(&place, 0, x * tokens_of(p).cosines[at] + y * sine);
      return load_float<IN_TYPE>(&place, 0);
    }
    return x;
  }

  // Returns an element of K or V; NaN if the cache does not have the key's page.
  DEVICE float element(bool v, int key, int d) const {
    const int token = key - (context.kv_len - p.q_len);
    if (APPENDS && token >= 0) {
      const NewTokens& tokens = tokens_of(p);
      const void* const from = v ? tokens.v : tokens.k;
      const long long at = index_of(v ? tokens.v_strides : tokens.k_strides, {context.batch, kv_head, token});
      const auto load = [&](int column) { return load_float<IN_TYPE>(from, at + column); };
      return v ? load(d) : turned(load, key, d);
    }
    const KvCacheView& cache = p.cache;
    const int page = named_page(cache, context.batch, key);
    if (!is_page(cache, page)) return not_a_number();
    const long long at = index_of(v ? cache.v_strides : cache.k_strides, {page, kv_head, slot_of(key)}) + d;
    const void* const from = v ? cache.v : cache.k;
    if constexpr (KV_BYTES > 1) {
      return load_float<IN_TYPE>(from, at);
    } else {
      const unsigned pair = pair_of_four<CACHE_TYPE, 0, 1>(static_cast<const unsigned char*>(from)[at]);
      const float* const scales = v ? cache.v_scales : cache.k_scales;
      return load_float<F16>(&pair, 0) * scales[static_cast<long long>(page) * p.kv_heads + kv_head];
    }
  }

  DEVICE float score_of(int key) const {
    const long long q = index_of(p.q_strides, {context.batch, context.head, query});
    const auto load_q = [&](int d) { return load_float<IN_TYPE>(p.q, q + d); };
    float dot = 0;
#pragma unroll 1  // compiles faster
    for (int d = 0; d < HEAD_DIM; ++d)
      dot += turned(load_q, context.kv_len - p.q_len + query, d) * element(false, key, d);
    return score(__fmul_rn(dot, p.scale), query, key, context);
  }
  DEVICE float value_of(int key, int d) const { return element(true, key, d); }
  // Returns NaN if the sequence's length is not allowed; a sink of NaN makes the row NaN.
  DEVICE float sink() const {
    if (context.kv_len < 0) return not_a_number();
    return SINK_IS_NONE ? -infinity() : sink_logit(context);
  }
  DEVICE void store(int d, float value) const {
    store_float<OUT_TYPE>(p.o, index_of(p.o_strides, {context.batch, context.head, query}) + d, value);
  }
  DEVICE void store_lse(float lse) const {
    if (p.lse) p.lse[(static_cast<long long>(context.batch) * p.q_heads + context.head) * p.q_len + query] = lse;
  }
};

/// Computes a row of a tile anew, by all lanes of a warp.
DEVICE void write_row_anew(const Params& p, const Place& place, const Row& row) {
  if (row.exists) write_exact_row(DecodeRow(p, place.batch, row.head, row.query, place.keys));
}
/// Computes the rows of a tile anew, by all lanes of `warps` warps; `warp` is the number of the calling warp.
DEVICE void write_tile_anew(const Params& p, const Place& place, int warp, int warps) {
#pragma unroll 1
  for (int number = warp; number < ROWS; number += warps) write_row_anew(p, place, row_of(p, place, number));
}

}  // namespace
