// Writes new keys and values to the cache: AppendParams in decode.h has the contract.
//
// Function constants: HEAD_DIM, CACHE_TYPE, PAGE_SIZE (0: contiguous). Grid: (q_len, batch).
#include "common/kernel/cpu.h"
#include "common/paged/kernels/decode.h"

extern "C" void append(const AppendParams* params, const Threadgroup* group) {
  constexpr int element = CACHE_TYPE == F32 ? 4 : 2;
  const AppendParams& p = *params;
  const int token = static_cast<int>(group->index[0]), batch = static_cast<int>(group->index[1]);
  const int key = p.lengths[batch] - p.q_len + token;
  if (key < 0) return;
  int page = batch, slot = key;
  if constexpr (PAGE_SIZE > 0) {
    page = p.cache.table[static_cast<long long>(batch) * p.cache.max_pages + key / static_cast<int>(PAGE_SIZE)];
    slot = key % static_cast<int>(PAGE_SIZE);
  }
  const auto copy = [&](const void* from, const TensorStrides& from_strides, void* to, const TensorStrides& to_strides,
                        int head) {
    __builtin_memcpy(static_cast<char*>(to) + index_of(to_strides, {page, head, slot}) * element,
                     static_cast<const char*>(from) + index_of(from_strides, {batch, head, token}) * element,
                     HEAD_DIM * element);
  };
  for (int head = 0; head < p.kv_heads; ++head) {
    copy(p.k, p.k_strides, p.cache.k, p.cache.k_strides, head);
    copy(p.v, p.v_strides, p.cache.v, p.cache.v_strides, head);
  }
}
