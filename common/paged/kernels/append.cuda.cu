// Writes new keys and values to the cache: AppendParams in decode.h has the contract.
//
// Function constants: HEAD_DIM, CACHE_TYPE (F32, F16 or BF16; HEAD_DIM elements are a multiple of 16 bytes), PAGE_SIZE
// (0: contiguous). Grid: (q_len, batch); any number of threads, each of which copies 16 bytes at a time.
//
// Checked: append[CACHE_TYPE=2,HEAD_DIM=128,PAGE_SIZE=16] without spills
#include "common/kernel/cuda.h"
#include "common/paged/kernels/decode.h"

extern "C" __global__ void append(const __grid_constant__ AppendParams p) {
  constexpr int element = CACHE_TYPE == F32 ? 4 : 2, units = HEAD_DIM * element / 16;
  const int token = blockIdx.x, batch = blockIdx.y, length = p.lengths[batch], key = length - p.q_len + token;
  if (key < 0 || length > p.most_keys) return;
  int page = batch, slot = key;
  if constexpr (PAGE_SIZE > 0) {
    page = p.cache.table[static_cast<long long>(batch) * p.cache.max_pages + key / PAGE_SIZE];
    if (static_cast<unsigned>(page) >= static_cast<unsigned>(p.cache.pages)) return;
    slot = key % PAGE_SIZE;
  }
  const auto copy = [&](const void* from, const TensorStrides& from_strides, void* to, const TensorStrides& to_strides,
                        int head, int unit) {
    const long long source = index_of(from_strides, {batch, head, token}) * element + unit * 16;
    const long long target = index_of(to_strides, {page, head, slot}) * element + unit * 16;
    *reinterpret_cast<uint4*>(static_cast<char*>(to) + target) =
        *reinterpret_cast<const uint4*>(static_cast<const char*>(from) + source);
  };
  for (int i = threadIdx.x; i < p.kv_heads * units; i += blockDim.x) {
    copy(p.k, p.k_strides, p.cache.k, p.cache.k_strides, i / units, i % units);
    copy(p.v, p.v_strides, p.cache.v, p.cache.v_strides, i / units, i % units);
  }
}
