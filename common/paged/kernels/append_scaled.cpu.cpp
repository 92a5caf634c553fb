// Writes new tokens to a cache of 8 bits, and rotates the tokens' queries: append_scaled.h has the contract.
//
// Function constants: HEAD_DIM (a multiple of 8), IN_TYPE (of q and of the new tokens), CACHE_TYPE, PAGE_SIZE (0:
// contiguous), ROTARY_DIM (even, at most HEAD_DIM; 0: nothing is rotated), INTERLEAVED (1: elements 2i and 2i + 1 are a
// pair; 0: elements i and i + ROTARY_DIM / 2). Grid: (q_len, kv_heads, batch). A threadgroup takes a new token of a
// key/value head, and the token's queries of the q_heads / kv_heads heads that read this head.
#include "common/paged/kernels/append_scaled.h"

#include "common/kernel/to_bytes.h"
#include "common/paged/kernels/turn_cpu.h"

namespace {

constexpr int LANES = 8;

INLINE void load_row(float* row, const void* tensor, long long at) {
  for (int d = 0; d < HEAD_DIM; d += LANES) store(row + d, load_floats<IN_TYPE, LANES>(tensor, at + d));
}

INLINE void store_row(void* cache, long long at, const float* row, float scale) {
  auto* const to = static_cast<unsigned char*>(cache) + at;
  VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) to[d] = byte_of<CACHE_TYPE>(row[d] / scale);
}

}  // namespace

extern "C" void append_scaled(const AppendScaledParams* params, const Threadgroup* group) {
  const AppendScaledParams& p = *params;
  const KvCacheView& cache = p.cache;
  const int token = static_cast<int>(group->index[0]), head = static_cast<int>(group->index[1]),
            batch = static_cast<int>(group->index[2]);
  const int key = p.lengths[batch] - p.q_len + token;
  float row[HEAD_DIM];
  if constexpr (ROTARY_DIM > 0) {
    const int of_group = p.q_heads / p.kv_heads;
    for (int q_head = head * of_group; q_head < (head + 1) * of_group; ++q_head) {
      load_row(row, p.q, index_of(p.q_strides, {batch, q_head, token}));
      if (key >= 0) turn(row, p.tokens, key);
      const long long to = ((static_cast<long long>(batch) * p.q_heads + q_head) * p.q_len + token) * HEAD_DIM;
      for (int d = 0; d < HEAD_DIM; d += LANES) {
        store_floats<IN_TYPE, LANES>(p.turned_q, to + d, load<Vector<float, LANES>>(row + d));
      }
    }
  }
  if (key < 0) return;
  KeyPlace place{batch, head, key};
  if constexpr (PAGE_SIZE > 0) {
    place.batch = cache.table[static_cast<long long>(batch) * cache.max_pages + key / static_cast<int>(PAGE_SIZE)];
    place.row = key % static_cast<int>(PAGE_SIZE);
  }
  const long long scale = static_cast<long long>(place.batch) * p.kv_heads + head;
  load_row(row, p.tokens.k, index_of(p.tokens.k_strides, {batch, head, token}));
  turn(row, p.tokens, key);
  store_row(cache.k, index_of(cache.k_strides, place), row, cache.k_scales[scale]);
  load_row(row, p.tokens.v, index_of(p.tokens.v_strides, {batch, head, token}));
  store_row(cache.v, index_of(cache.v_strides, place), row, cache.v_scales[scale]);
}
