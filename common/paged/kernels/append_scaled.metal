// Writes new tokens to a cache of 8 bits, and rotates the tokens' queries: append_scaled.h has the contract. This
// kernel has not run on Apple hardware yet.
//
// Function constants: HEAD_DIM, IN_TYPE (of q and of the new tokens), CACHE_TYPE, PAGE_SIZE (0: contiguous), ROTARY_DIM
// (even, at most HEAD_DIM; 0: nothing is rotated), INTERLEAVED (1: elements 2i and 2i + 1 are a pair; 0: elements i and
// i + ROTARY_DIM / 2). Grid: (q_len, kv_heads, batch). A threadgroup takes a new token of a key/value head, and the
// token's queries of the q_heads / kv_heads heads that read this head. Any number of threads; a thread takes one
// element at a time.
#include "common/kernel/metal.h"
#include "common/kernel/to_bytes.h"
#include "common/paged/kernels/append_scaled.h"

constexpr constant int HALF = ROTARY_DIM / 2;

/// The element at which a row begins.
INLINE long begin_of(constant TensorStrides& strides, int batch, int head, int row) {
  return batch * strides.batch + head * strides.head + row * strides.row;
}

/// Returns element d of the row that begins at element `at`, rotated by the angles of the row's position. A row at a
/// negative position is not rotated.
INLINE float turned(const device void* tensor, long at, int d, constant NewTokens& tokens, int position) {
  const float x = load_float<IN_TYPE>(tensor, at + d);
  if (d >= ROTARY_DIM || position < 0) return x;
  const bool second = INTERLEAVED ? d % 2 != 0 : d >= HALF;
  const int step = INTERLEAVED ? 1 : HALF, pair = INTERLEAVED ? d / 2 : second ? d - HALF : d;
  const float y = load_float<IN_TYPE>(tensor, at + (second ? d - step : d + step));
  const long angle = static_cast<long>(position) * HALF + pair;
  const float cosine = tokens.cosines[angle], sine = tokens.sines[angle];
  return second ? x * cosine + y * sine : x * cosine - y * sine;
}

kernel void append_scaled(constant AppendScaledParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint3 threads [[threads_per_threadgroup]]) {
  const int token = static_cast<int>(group.x), head = static_cast<int>(group.y), batch = static_cast<int>(group.z);
  const int length = p.lengths[batch], step = static_cast<int>(threads.x), first = static_cast<int>(thread_index);
  const int key = static_cast<uint>(length) <= static_cast<uint>(p.most_keys) ? length - p.q_len + token : -1;
  if (ROTARY_DIM > 0) {
    const int of_group = p.q_heads / p.kv_heads;
    for (int i = first; i < of_group * HEAD_DIM; i += step) {
      const int q_head = head * of_group + i / HEAD_DIM, d = i % HEAD_DIM;
      const long row = (static_cast<long>(batch) * p.q_heads + q_head) * p.q_len + token;
      store_float<IN_TYPE>(p.turned_q, row * HEAD_DIM + d,
                           turned(p.q, begin_of(p.q_strides, batch, q_head, token), d, p.tokens, key));
    }
  }
  if (key < 0) return;
  int page = batch, slot = key;
  if (PAGE_SIZE > 0) {
    const int page_size = PAGE_SIZE == 0 ? 1 : PAGE_SIZE;
    page = p.cache.table[static_cast<long>(batch) * p.cache.max_pages + key / page_size];
    if (static_cast<uint>(page) >= static_cast<uint>(p.cache.pages)) return;
    slot = key % page_size;
  }
  const long scale = static_cast<long>(page) * p.kv_heads + head;
  const float k_scale = p.cache.k_scales[scale], v_scale = p.cache.v_scales[scale];
  device uchar* const k = static_cast<device uchar*>(p.cache.k) + begin_of(p.cache.k_strides, page, head, slot);
  device uchar* const v = static_cast<device uchar*>(p.cache.v) + begin_of(p.cache.v_strides, page, head, slot);
  const long from_k = begin_of(p.tokens.k_strides, batch, head, token);
  const long from_v = begin_of(p.tokens.v_strides, batch, head, token);
  for (int d = first; d < HEAD_DIM; d += step) {
    k[d] = byte_of<CACHE_TYPE>(turned(p.tokens.k, from_k, d, p.tokens, key) / k_scale);
    v[d] = byte_of<CACHE_TYPE>(load_float<IN_TYPE>(p.tokens.v, from_v + d) / v_scale);
  }
}
