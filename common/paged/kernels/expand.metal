// Writes a cache of 8 bits as a contiguous cache of Q's type: expand.h has the contract. This kernel has not run on
// Apple hardware yet.
//
// Function constants: HEAD_DIM, CACHE_TYPE, OUT_TYPE, PAGE_SIZE (0: contiguous), KEYS, THREADS. Grid: (blocks of KEYS
// keys, kv_heads, batch).
#include "common/kernel/bytes_metal.h"
#include "common/kernel/metal.h"
#include "common/paged/kernels/expand.h"

INLINE void expand_element(const device void* from, constant TensorStrides& strides, const device float* scales,
                           int kv_heads, int page, int head, int slot, int d, device void* to, long target) {
  if (page < 0) return store_nan<OUT_TYPE>(to, target);
  const float element =
      load_element<CACHE_TYPE>(from, page * strides.batch + head * strides.head + slot * strides.row + d);
  const float scale = scales[static_cast<long>(page) * kv_heads + head];
  if (is_nan(element) || !is_finite(scale)) return store_nan<OUT_TYPE>(to, target);
  store_float<OUT_TYPE>(to, target, element * scale);
}

kernel void expand(constant ExpandParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                   uint thread_index [[thread_index_in_threadgroup]]) {
  const int head = static_cast<int>(group.y), batch = static_cast<int>(group.z),
            first = static_cast<int>(group.x) * KEYS;
  const int length = p.lengths[batch];
  if (length > p.most_keys) return;
  const int count = (min(first + static_cast<int>(KEYS), length) - first) * HEAD_DIM;
  const long row = (static_cast<long>(batch) * p.kv_heads + head) * p.most_keys;
  for (int i = static_cast<int>(thread_index); i < count; i += THREADS) {
    const int key = first + i / HEAD_DIM, d = i % HEAD_DIM;
    int page = batch, slot = key;
    if (PAGE_SIZE > 0) {
      const int page_size = PAGE_SIZE == 0 ? 1 : PAGE_SIZE;
      page = p.cache.table[static_cast<long>(batch) * p.cache.max_pages + key / page_size];
      if (static_cast<uint>(page) >= static_cast<uint>(p.cache.pages)) page = -1;
      slot = key % page_size;
    }
    const long target = (row + key) * HEAD_DIM + d;
    expand_element(p.cache.k, p.cache.k_strides, p.cache.k_scales, p.kv_heads, page, head, slot, d, p.k, target);
    expand_element(p.cache.v, p.cache.v_strides, p.cache.v_scales, p.kv_heads, page, head, slot, d, p.v, target);
  }
}
