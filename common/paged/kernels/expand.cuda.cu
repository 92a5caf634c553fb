// Writes a cache of 8 bits as a contiguous cache of Q's type: expand.h has the contract.
//
// Function constants: HEAD_DIM (a multiple of 8), CACHE_TYPE, OUT_TYPE, PAGE_SIZE (0: contiguous), KEYS, THREADS. Grid:
// (blocks of KEYS keys, kv_heads, batch). A thread reads eight bytes at a time.
//
// Checked: expand[CACHE_TYPE=3,HEAD_DIM=128,KEYS=64,OUT_TYPE=2,PAGE_SIZE=16,THREADS=256] without spills
// Checked: expand[CACHE_TYPE=4,HEAD_DIM=72,KEYS=64,OUT_TYPE=0,PAGE_SIZE=0,THREADS=256] without spills
#include "common/kernel/bytes.h"
#include "common/paged/kernels/expand.h"

namespace {

constexpr int UNIT = 8, UNITS = HEAD_DIM / UNIT;  // UNIT: elements that a thread reads at once; UNITS: of a row
constexpr int OUT_BYTES = bytes_of_type(OUT_TYPE), TOKENS = PAGE_SIZE == 0 ? 1 : PAGE_SIZE;  // tokens of a page

/// Writes the elements of four bytes, each multiplied by the scale.
DEVICE void expand_four(unsigned four, float scale, void* to, long long target) {
  const unsigned pairs[2] = {pair_of_four<CACHE_TYPE, 0, 1>(four), pair_of_four<CACHE_TYPE, 2, 3>(four)};
  float values[4];
  UNROLL for (int i = 0; i < 4; ++i) {
    values[i] = load_float<F16>(pairs, i) * scale;
    // Before sm_89 pair_of_four() converts a NaN of E4M3 to 480.
    if (CACHE_TYPE == E4M3 && (four >> 8 * i & 0x7f) == 0x7f) values[i] = not_a_number();
  }
  char* const at = static_cast<char*>(to) + target * OUT_BYTES;
  if constexpr (OUT_TYPE == F32) {
    *reinterpret_cast<float4*>(at) = {values[0], values[1], values[2], values[3]};
  } else {
    *reinterpret_cast<uint2*>(at) = {pack<OUT_TYPE>(values[0], values[1]), pack<OUT_TYPE>(values[2], values[3])};
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) expand(const __grid_constant__ ExpandParams p) {
  const KvCacheView& cache = p.cache;
  const int head = blockIdx.y, batch = blockIdx.z, first = blockIdx.x * int{KEYS}, length = p.lengths[batch];
  if (length > p.most_keys) return;
  const int end = min(first + int{KEYS}, length);
  const long long row = (static_cast<long long>(batch) * p.kv_heads + head) * p.most_keys;
  for (int i = threadIdx.x; first + i / UNITS < end; i += THREADS) {
    const int key = first + i / UNITS, d = i % UNITS * UNIT;
    const long long target = (row + key) * HEAD_DIM + d;
    KeyPlace place{batch, head, key};
    bool lost = false;
    if constexpr (PAGE_SIZE > 0) {
      place.batch = cache.table[static_cast<long long>(batch) * cache.max_pages + key / TOKENS];
      place.row = key % TOKENS;
      lost = static_cast<unsigned>(place.batch) >= static_cast<unsigned>(cache.pages);
    }
    const auto expand_unit = [&](const void* from, const TensorStrides& strides, const float* scales, void* to) {
      uint2 bytes{};
      float scale = not_a_number();
      if (!lost) {
        bytes = *reinterpret_cast<const uint2*>(static_cast<const char*>(from) + index_of(strides, place) + d);
        scale = scales[static_cast<long long>(place.batch) * p.kv_heads + head];
      }
      expand_four(bytes.x, scale, to, target);
      expand_four(bytes.y, scale, to, target + 4);
    };
    expand_unit(cache.k, cache.k_strides, cache.k_scales, p.k);
    expand_unit(cache.v, cache.v_strides, cache.v_scales, p.v);
  }
}
