// P = softmax(S) of each row, written by hand. A row is read once, stays in the registers of ROW_THREADS threads, and
// is written once. With WHOLE_UNITS, each load and store moves a unit of 16 bytes. Each warp has a maximum of its own,
// so that the threads of a row synchronize only once.
//
// The first limit is memory bandwidth, the second is instruction issue. Three things save instructions. One instruction
// updates the maxima of two 16-bit elements. With WHOLE_UNITS a unit lies wholly in the row, or wholly outside, so its
// elements need no test of their own. The multiplication by log2(e) is part of the exponent's multiply-add.
//
// Function constants: IN_TYPE; THREADS of a threadgroup, which take THREADS / ROW_THREADS rows; ROW_THREADS, a power of
// two up to THREADS; UNITS, the units of 16 bytes that a thread holds (UNITS * ROW_THREADS units must hold a row);
// WHOLE_UNITS (1: kv_len is a multiple of a unit's elements); RESIDENT, the threads that a multiprocessor must have
// registers for; STREAMING (1: loads and stores tell the caches that no data is used twice). Grid: (row tiles, heads).
//
// Checked: codegen_softmax[IN_TYPE=2,RESIDENT=2048,ROW_THREADS=128,STREAMING=0,THREADS=128,UNITS=2,WHOLE_UNITS=1] without spills
// Checked: codegen_softmax[IN_TYPE=2,RESIDENT=256,ROW_THREADS=256,STREAMING=1,THREADS=256,UNITS=16,WHOLE_UNITS=1] without spills
// Checked: codegen_softmax[IN_TYPE=2,RESIDENT=128,ROW_THREADS=32,STREAMING=0,THREADS=128,UNITS=1,WHOLE_UNITS=0] without spills
// Checked: codegen_softmax[IN_TYPE=0,RESIDENT=128,ROW_THREADS=128,STREAMING=0,THREADS=128,UNITS=4,WHOLE_UNITS=0] without spills
#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"
#include "proto5_codegen/kernels/generated.h"

namespace {

constexpr int ELEMENT_BYTES = IN_TYPE == F32 ? 4 : 2;
constexpr int OF_WORD = 4 / ELEMENT_BYTES, OF_UNIT = 4 * OF_WORD;  // elements of a word, of a unit
constexpr int ROWS = THREADS / ROW_THREADS;
constexpr int LANES = ROW_THREADS < WARP ? ROW_THREADS : WARP;
constexpr int WARPS = ROW_THREADS / LANES;  // of a row
/// A word whose elements are -infinity.
constexpr unsigned NOTHING = IN_TYPE == F32 ? 0xff800000 : IN_TYPE == BF16 ? 0xff80ff80 : 0xfc00fc00;

DEVICE float element(unsigned word, int i) {
  if constexpr (IN_TYPE == F32) return __uint_as_float(word);
  if constexpr (IN_TYPE == BF16) return __uint_as_float(i == 0 ? word << 16 : word & 0xffff0000);
  return load_float<IN_TYPE>(&word, i);
}

/// Returns the larger elements of two words.
DEVICE unsigned larger(unsigned a, unsigned b) {
  if constexpr (IN_TYPE == F32) return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  unsigned both;
  if constexpr (IN_TYPE == BF16) {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  } else {
    asm("max.f16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  }
  return both;
}

/// Loads a unit, whose first element is `at`, as four words. Elements from `keys` on, beyond the row, become -infinity.
DEVICE void load(unsigned (&words)[4], const void* in, long long at, int keys) {
  UNROLL for (unsigned& word : words) word = NOTHING;
  if constexpr (WHOLE_UNITS) {
    if (keys <= 0) return;
    const uint4* const unit = reinterpret_cast<const uint4*>(static_cast<const char*>(in) + at * ELEMENT_BYTES);
    const uint4 read = STREAMING ? __ldcs(unit) : *unit;
    words[0] = read.x, words[1] = read.y, words[2] = read.z, words[3] = read.w;
  } else {
    UNROLL for (int i = 0; i < OF_UNIT; ++i) {
      if (i >= keys) break;
      if constexpr (IN_TYPE == F32) {
        words[i] = static_cast<const unsigned*>(in)[at + i];
      } else {
        words[i / 2] =
            __byte_perm(words[i / 2], static_cast<const unsigned short*>(in)[at + i], i % 2 ? 0x5410 : 0x3254);
      }
    }
  }
}

DEVICE void store(void* out, long long at, int keys, const float (&weights)[OF_UNIT], float factor) {
  if constexpr (WHOLE_UNITS) {
    if (keys <= 0) return;
    unsigned words[4];
    UNROLL for (int i = 0; i < 4; ++i) {
      if constexpr (IN_TYPE == F32) {
        words[i] = __float_as_uint(weights[i] * factor);
      } else {
        words[i] = pack<IN_TYPE>(weights[2 * i] * factor, weights[2 * i + 1] * factor);
      }
    }
    uint4* const unit = reinterpret_cast<uint4*>(static_cast<char*>(out) + at * ELEMENT_BYTES);
    const uint4 written{words[0], words[1], words[2], words[3]};
    if (STREAMING) {
      __stcs(unit, written);
    } else {
      *unit = written;
    }
  } else {
    UNROLL for (int i = 0; i < OF_UNIT; ++i) {
      if (i < keys) store_float<IN_TYPE>(out, at + i, weights[i] * factor);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    codegen_softmax(const __grid_constant__ CodegenParams p) {
  __shared__ float2 parts[THREADS / LANES];  // for each warp: the maximum m times log2(e), and the sum of exp(x - m)
  const int row = blockIdx.x * ROWS + threadIdx.x / ROW_THREADS, thread = threadIdx.x % ROW_THREADS;
  const bool exists = row < p.q_len;
  const long long first = (static_cast<long long>(blockIdx.y) * p.q_len + (exists ? row : 0)) * p.kv_len;
  const auto key_of = [&](int unit) { return (unit * int{ROW_THREADS} + thread) * OF_UNIT; };

  unsigned words[UNITS][4];
  UNROLL for (int unit = 0; unit < UNITS; ++unit) {
    load(words[unit], p.in, first + key_of(unit), p.kv_len - key_of(unit));
  }
  unsigned largest = NOTHING;
  UNROLL for (int unit = 0; unit < UNITS; ++unit) {
    UNROLL for (const unsigned word : words[unit]) largest = larger(largest, word);
  }
  float maximum = fmaxf(element(largest, 0), element(largest, OF_WORD - 1));
  UNROLL for (int step = LANES / 2; step > 0; step /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, step));
  }
  maximum *= log2_e;

  const float shift = maximum == -infinity() ? 0 : maximum;  // a warp without keys has the maximum -infinity
  float weights[UNITS][OF_UNIT];
  float sum = 0;
  UNROLL for (int unit = 0; unit < UNITS; ++unit) {
    UNROLL for (int i = 0; i < OF_UNIT; ++i) {
      weights[unit][i] = exp2_approx(__fmaf_rn(element(words[unit][i / OF_WORD], i % OF_WORD), log2_e, -shift));
      sum += weights[unit][i];
    }
  }
  UNROLL for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  float factor = 1;
  if constexpr (WARPS > 1) {
    const int warp = threadIdx.x / WARP, first_warp = warp / WARPS * WARPS;
    if (threadIdx.x % WARP == 0) parts[warp] = {maximum, sum};
    __syncthreads();
    float row_maximum = maximum;
    UNROLL for (int i = 0; i < WARPS; ++i) row_maximum = fmaxf(row_maximum, parts[first_warp + i].x);
    sum = 0;
    UNROLL for (int i = 0; i < WARPS; ++i) {
      sum += parts[first_warp + i].y * exp2_approx(parts[first_warp + i].x - row_maximum);
    }
    factor = exp2_approx(maximum - row_maximum);
  }
  factor *= reciprocal_approx(sum);
  if (!exists) return;
  UNROLL for (int unit = 0; unit < UNITS; ++unit) {
    store(p.out, first + key_of(unit), p.kv_len - key_of(unit), weights[unit], factor);
  }
}
