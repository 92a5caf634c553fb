// Writes a cache of 8 bits as a contiguous cache of Q's type: expand.h has the contract.
//
// Function constants: HEAD_DIM (a multiple of 8), CACHE_TYPE, OUT_TYPE, PAGE_SIZE (0: contiguous), KEYS. Grid: (blocks
// of KEYS keys, kv_heads, batch).
#include "common/paged/kernels/expand.h"

#include "common/kernel/bytes_cpu.h"

namespace {

constexpr int LANES = 8;

INLINE void expand_row(const void* from, long long source, float scale, void* to, long long target) {
  using Floats = Vector<float, LANES>;
  scale /= unit_of_type(CACHE_TYPE);
  for (int d = 0; d < HEAD_DIM; d += LANES) {
    Floats values = load_elements<CACHE_TYPE, LANES>(from, source + d) * scale;
    if constexpr (CACHE_TYPE == E4M3) {
      const auto bytes = load<Vector<signed char, LANES>>(static_cast<const signed char*>(from) + source + d);
      const auto is_nan = __builtin_convertvector((bytes & 0x7f) == 0x7f, Vector<int, LANES>);
      values = is_nan ? Floats{} + __builtin_nanf("") : values;
    }
    store_floats<OUT_TYPE, LANES>(to, target + d, values);
  }
}

}  // namespace

extern "C" void expand(const ExpandParams* params, const Threadgroup* group) {
  const ExpandParams& p = *params;
  const KvCacheView& cache = p.cache;
  const int head = static_cast<int>(group->index[1]), batch = static_cast<int>(group->index[2]);
  const int first = static_cast<int>(group->index[0]) * int{KEYS}, length = p.lengths[batch];
  const int end = first + int{KEYS} < length ? first + int{KEYS} : length;
  const long long row = (static_cast<long long>(batch) * p.kv_heads + head) * p.most_keys;
  for (int key = first; key < end; ++key) {
    KeyPlace place{batch, head, key};
    if constexpr (PAGE_SIZE > 0) {
      place.batch = cache.table[static_cast<long long>(batch) * cache.max_pages + key / static_cast<int>(PAGE_SIZE)];
      place.row = key % static_cast<int>(PAGE_SIZE);
    }
    const long long scale = static_cast<long long>(place.batch) * p.kv_heads + head, target = (row + key) * HEAD_DIM;
    expand_row(cache.k, index_of(cache.k_strides, place), cache.k_scales[scale], p.k, target);
    expand_row(cache.v, index_of(cache.v_strides, place), cache.v_scales[scale], p.v, target);
  }
}
