// P = softmax(S) of each row, written by hand: a row is read once, 16 bytes at a time, stays in the registers of
// ROW_THREADS threads, and is written once.
//
// Function constants: IN_TYPE; ROW_THREADS, a power of two up to 256; UNITS, of 16 bytes, that a thread holds (all rows
// must fit); WHOLE_UNITS (kv_len is a multiple of a unit's elements). Grid: (row tiles, heads); 256 threads, which take
// 256 / ROW_THREADS rows.
//
// Checked: codegen_softmax[IN_TYPE=2,ROW_THREADS=32,UNITS=4,WHOLE_UNITS=1] without spills
// Checked: codegen_softmax[IN_TYPE=2,ROW_THREADS=256,UNITS=4,WHOLE_UNITS=1] without spills
// Checked: codegen_softmax[IN_TYPE=0,ROW_THREADS=128,UNITS=4,WHOLE_UNITS=0] without spills
#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"
#include "proto5_codegen/kernels/generated.h"

namespace {

constexpr int THREADS = 256;
constexpr int ELEMENT_BYTES = IN_TYPE == F32 ? 4 : 2;
constexpr int OF_UNIT = 16 / ELEMENT_BYTES;  // elements
constexpr int ROWS = THREADS / ROW_THREADS;
constexpr int LANES = ROW_THREADS < WARP ? ROW_THREADS : WARP;
constexpr int WARPS = ROW_THREADS / LANES;  // of a row

/// `combine` of what the threads of a row give; `parts` has a place for each warp.
template <typename Combine>
DEVICE float reduced(float value, float* parts, Combine combine) {
  UNROLL for (int step = LANES / 2; step > 0; step /= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
  if constexpr (WARPS > 1) {
    const int warp = threadIdx.x / WARP, first = warp / WARPS * WARPS;
    if (threadIdx.x % WARP == 0) parts[warp] = value;
    __syncthreads();
    value = parts[first];
    UNROLL for (int i = 1; i < WARPS; ++i) value = combine(value, parts[first + i]);
  }
  return value;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) codegen_softmax(const __grid_constant__ CodegenParams p) {
  __shared__ float maxima[THREADS / WARP], sums[THREADS / WARP];
  const int row = blockIdx.x * ROWS + threadIdx.x / ROW_THREADS, thread = threadIdx.x % ROW_THREADS;
  const bool exists = row < p.q_len;
  const long long first = (static_cast<long long>(blockIdx.y) * p.q_len + (exists ? row : 0)) * p.kv_len;
  const auto key_of = [&](int unit) { return (unit * int{ROW_THREADS} + thread) * OF_UNIT; };

  float x[UNITS][OF_UNIT];
  float maximum = -infinity();
  UNROLL for (int unit = 0; unit < UNITS; ++unit) {
    const int key = key_of(unit);
    uint4 words{};
    if (WHOLE_UNITS && key < p.kv_len) {
      words = __ldcs(reinterpret_cast<const uint4*>(static_cast<const char*>(p.in) + (first + key) * ELEMENT_BYTES));
    }
    UNROLL for (int i = 0; i < OF_UNIT; ++i) {
      float& score = x[unit][i];
      if (WHOLE_UNITS) {
        score = load_float<IN_TYPE>(&words, i);
      } else {
        score = key + i < p.kv_len ? load_float<IN_TYPE>(p.in, first + key + i) : 0;
      }
      score = key + i < p.kv_len ? score * log2_e : -infinity();
      maximum = fmaxf(maximum, score);
    }
  }
  maximum = reduced(maximum, maxima, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  UNROLL for (int unit = 0; unit < UNITS; ++unit) {
    UNROLL for (int i = 0; i < OF_UNIT; ++i) {
      x[unit][i] = exp2_approx(x[unit][i] - maximum);
      sum += x[unit][i];
    }
  }
  const float inverse = 1 / reduced(sum, sums, [](float a, float b) { return a + b; });
  if (!exists) return;
  UNROLL for (int unit = 0; unit < UNITS; ++unit) {
    const int key = key_of(unit);
    unsigned words[4];
    UNROLL for (int i = 0; i < 4; ++i) {
      if constexpr (IN_TYPE == F32) {
        words[i] = __float_as_uint(x[unit][i] * inverse);
      } else {
        words[i] = pack<IN_TYPE>(x[unit][2 * i] * inverse, x[unit][2 * i + 1] * inverse);
      }
    }
    if (WHOLE_UNITS) {
      if (key < p.kv_len) {
        __stcs(reinterpret_cast<uint4*>(static_cast<char*>(p.out) + (first + key) * ELEMENT_BYTES),
               uint4{words[0], words[1], words[2], words[3]});
      }
    } else {
      UNROLL for (int i = 0; i < OF_UNIT; ++i) {
        if (key + i < p.kv_len) store_float<IN_TYPE>(p.out, first + key + i, x[unit][i] * inverse);
      }
    }
  }
}
