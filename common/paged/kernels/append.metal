// Writes new keys and values to the cache: AppendParams in decode.h has the contract. This kernel has not run on Apple
// hardware yet.
//
// Function constants: HEAD_DIM, CACHE_TYPE (F32, F16 or BF16; HEAD_DIM elements are a multiple of 16 bytes), PAGE_SIZE
// (0: contiguous). Grid: (q_len, batch); any number of threads, each of which copies 16 bytes at a time.
#include "common/kernel/metal.h"
#include "common/paged/kernels/decode.h"

constexpr constant int ELEMENT_BYTES = CACHE_TYPE == F32 ? 4 : 2, UNITS = HEAD_DIM * ELEMENT_BYTES / 16;

/// Returns the byte at which a unit of a row begins. A unit is 16 bytes.
INLINE long byte_of(constant TensorStrides& strides, int batch, int head, int row, int unit) {
  return (batch * strides.batch + head * strides.head + row * strides.row) * ELEMENT_BYTES + unit * 16;
}
INLINE void copy_unit(device void* to, long target, const device void* from, long source) {
  *reinterpret_cast<device uint4*>(static_cast<device uchar*>(to) + target) =
      *reinterpret_cast<const device uint4*>(static_cast<const device uchar*>(from) + source);
}

kernel void append(constant AppendParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                   uint thread_index [[thread_index_in_threadgroup]], uint3 threads [[threads_per_threadgroup]]) {
  const int token = static_cast<int>(group.x), batch = static_cast<int>(group.y), length = p.lengths[batch];
  const int key = length - p.q_len + token;
  if (key < 0 || length > p.most_keys) return;
  int page = batch, slot = key;
  if (PAGE_SIZE > 0) {
    const int page_size = PAGE_SIZE == 0 ? 1 : PAGE_SIZE;
    page = p.cache.table[static_cast<long>(batch) * p.cache.max_pages + key / page_size];
    if (static_cast<uint>(page) >= static_cast<uint>(p.cache.pages)) return;
    slot = key % page_size;
  }
  for (int i = static_cast<int>(thread_index); i < p.kv_heads * UNITS; i += static_cast<int>(threads.x)) {
    const int head = i / UNITS, unit = i % UNITS;
    copy_unit(p.cache.k, byte_of(p.cache.k_strides, page, head, slot, unit), p.k,
              byte_of(p.k_strides, batch, head, token, unit));
    copy_unit(p.cache.v, byte_of(p.cache.v_strides, page, head, slot, unit), p.v,
              byte_of(p.v_strides, batch, head, token, unit));
  }
}
