// Writes new tokens to a cache of 8 bits, and rotates the tokens' queries: append_scaled.h has the contract.
//
// Function constants: HEAD_DIM, IN_TYPE (of q and of the new tokens), CACHE_TYPE, PAGE_SIZE (0: contiguous), ROTARY_DIM
// (even, at most HEAD_DIM; 0: nothing is rotated), INTERLEAVED (1: elements 2i and 2i + 1 are a pair; 0: elements i and
// i + ROTARY_DIM / 2). Grid: (q_len, kv_heads, batch). A threadgroup takes a new token of a key/value head, and the
// token's queries of the q_heads / kv_heads heads that read this head. Any number of threads; a thread takes one
// element at a time.
//
// Checked: append_scaled[CACHE_TYPE=3,HEAD_DIM=128,IN_TYPE=2,INTERLEAVED=0,PAGE_SIZE=16,ROTARY_DIM=128] without spills
// Checked: append_scaled[CACHE_TYPE=4,HEAD_DIM=80,IN_TYPE=1,INTERLEAVED=1,PAGE_SIZE=0,ROTARY_DIM=20] without spills
// Checked: append_scaled[CACHE_TYPE=4,HEAD_DIM=72,IN_TYPE=0,INTERLEAVED=0,PAGE_SIZE=1,ROTARY_DIM=0] without spills
#include "common/kernel/to_bytes.h"
#include "common/paged/kernels/append_scaled.h"

namespace {

constexpr int HALF = ROTARY_DIM / 2;

/// Returns element d of the row that begins at element `at`, rotated by the angles of the row's position. A row at a
/// negative position is not rotated.
DEVICE float turned(const void* tensor, long long at, int d, const NewTokens& tokens, int position) {
  const float x = load_float<IN_TYPE>(tensor, at + d);
  if (d >= ROTARY_DIM || position < 0) return x;
  const bool second = INTERLEAVED ? d % 2 != 0 : d >= HALF;
  const int step = INTERLEAVED ? 1 : HALF, pair = INTERLEAVED ? d / 2 : second ? d - HALF : d;
  const float y = load_float<IN_TYPE>(tensor, at + (second ? d - step : d + step));
  const long long angle = static_cast<long long>(position) * HALF + pair;
  const float cosine = tokens.cosines[angle], sine = tokens.sines[angle];
  return second ? x * cosine + y * sine : x * cosine - y * sine;
}

}  // namespace

extern "C" __global__ void append_scaled(const __grid_constant__ AppendScaledParams p) {
  const KvCacheView& cache = p.cache;
  const NewTokens& tokens = p.tokens;
  const int token = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, length = p.lengths[batch];
  const int key = static_cast<unsigned>(length) <= static_cast<unsigned>(p.most_keys) ? length - p.q_len + token : -1;
  if constexpr (ROTARY_DIM > 0) {
    const int of_group = p.q_heads / p.kv_heads;
    for (int i = threadIdx.x; i < of_group * HEAD_DIM; i += blockDim.x) {
      const int q_head = head * of_group + i / HEAD_DIM, d = i % HEAD_DIM;
      const float element = turned(p.q, index_of(p.q_strides, {batch, q_head, token}), d, tokens, key);
      const long long row = (static_cast<long long>(batch) * p.q_heads + q_head) * p.q_len + token;
      store_float<IN_TYPE>(p.turned_q, row * HEAD_DIM + d, element);
    }
  }
  if (key < 0) return;
  KeyPlace place{batch, head, key};
  if constexpr (PAGE_SIZE > 0) {
    place.batch = cache.table[static_cast<long long>(batch) * cache.max_pages + key / PAGE_SIZE];
    place.row = key % PAGE_SIZE;
    if (static_cast<unsigned>(place.batch) >= static_cast<unsigned>(cache.pages)) return;
  }
  const long long scale = static_cast<long long>(place.batch) * p.kv_heads + head;
  const float k_scale = cache.k_scales[scale], v_scale = cache.v_scales[scale];
  auto* const k = static_cast<unsigned char*>(cache.k) + index_of(cache.k_strides, place);
  auto* const v = static_cast<unsigned char*>(cache.v) + index_of(cache.v_strides, place);
  const long long from_k = index_of(tokens.k_strides, {batch, head, token});
  const long long from_v = index_of(tokens.v_strides, {batch, head, token});
  for (int d = threadIdx.x; d < HEAD_DIM; d += blockDim.x) {
    k[d] = byte_of<CACHE_TYPE>(turned(tokens.k, from_k, d, tokens, key) / k_scale);
    v[d] = byte_of<CACHE_TYPE>(load_float<IN_TYPE>(tokens.v, from_v + d) / v_scale);
  }
}
