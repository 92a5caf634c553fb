// Writes the keys and values of the new tokens to the cache before any threadgroup reads the cache. The keys are
// rotated by their positions. Function constants: PAGE_SIZE (0: a contiguous cache), ROTARY_DIM (elements of a row that
// are rotated; 0: none), INTERLEAVED (the order of the rotated pairs, see turn()).
//
// The new tokens are divided into shares. Each threadgroup takes and writes shares until none is left, and then waits
// until all shares are written. It waits only for shares that running threadgroups have taken. So the launch ends even
// if only some of its threadgroups run at the same time.
#pragma once

#ifdef __CUDACC__
#include "common/kernel/grid.h"
#else
#include "common/kernel/cpu.h"
#endif
#include "common/paged/kernels/prefill/prefill.h"

#define BEFORE_IS_NONE 0

namespace append {

// add_one() returns the counter's value before the call. After `count` calls the counter is 0 again.
#ifdef __CUDACC__
#define APPEND_FUNCTION DEVICE
constexpr int most_aligned = 16;  // addresses and strides of tensors are multiples of 16 bytes
DEVICE unsigned add_one(unsigned* counter, unsigned count) { return atomicInc(counter, count - 1); }
DEVICE void wait_for(const unsigned* counter, unsigned least) {
  while (load_flag(counter) < least) {
  }
}
#else
#define APPEND_FUNCTION INLINE
constexpr int most_aligned = 1;
INLINE unsigned add_one(unsigned* counter, unsigned count) {
  const unsigned before = __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
  if (before == count - 1) __atomic_store_n(counter, 0, __ATOMIC_RELAXED);
  return before;
}
INLINE void wait_for(const unsigned* counter, unsigned least) {
  while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) < least) {
  }
}
#endif

constexpr int element_bytes = IN_TYPE == F32 ? 4 : 2;
constexpr int half = ROTARY_DIM / 2;
/// The number of elements that a thread reads at once (a run). It divides `half`, so that each rotated half of a row,
/// and the rest of the row, consists of whole runs.
constexpr int run = half % 8 == 0 ? 8 : half % 4 == 0 ? 4 : half % 2 == 0 ? 2 : 1;
struct alignas(most_aligned < run * element_bytes ? most_aligned : run * element_bytes) Run {
  unsigned char bytes[run * element_bytes];
};
// The numbers of units for one token and head. A unit is two runs of K that are rotated together (`turning`), one run
// of K that is not rotated (`resting`), or one run of V (`values`).
constexpr int turning = half / run, resting = (HEAD_DIM - 2 * half) / run, values = HEAD_DIM / run;
constexpr int units = turning + resting + values;

APPEND_FUNCTION const Run& run_at(const void* tensor, long long index) {
  return *reinterpret_cast<const Run*>(static_cast<const char*>(tensor) + index * element_bytes);
}
APPEND_FUNCTION Run& run_at(void* tensor, long long index) {
  return *reinterpret_cast<Run*>(static_cast<char*>(tensor) + index * element_bytes);
}

/// Rotates the pairs (x, y) of two runs. Without INTERLEAVED pair i is element i of both runs. With INTERLEAVED pair i
/// is elements 2i and 2i + 1 of the joined runs.
APPEND_FUNCTION void turn(Run& first, Run& second, const float* cosines, const float* sines) {
  UNROLL for (int i = 0; i < run; ++i) {
    Run& of_x = INTERLEAVED && i >= run / 2 ? second : first;
    Run& of_y = INTERLEAVED && i < run / 2 ? first : second;
    const int x_at = INTERLEAVED ? 2 * i % run : i, y_at = INTERLEAVED ? x_at + 1 : i;
    const float x = load_float<IN_TYPE>(&of_x, x_at), y = load_float<IN_TYPE>(&of_y, y_at);
    store_float<IN_TYPE>(&of_x, x_at, x * cosines[i] - y * sines[i]);
    store_float<IN_TYPE>(&of_y, y_at, y * cosines[i] + x * sines[i]);
  }
}

struct alignas(most_aligned >= 16 && run % 4 == 0 ? 16 : 4) Angles {
  float of[run];
};

/// A unit that is loaded and not stored yet: two runs to be rotated, or one run that is copied unchanged.
struct OnTheWay {
  Run x, y;
  Angles cosines, sines;
  void *x_to, *y_to;  // null: not written
};

APPEND_FUNCTION void read(OnTheWay& unit, const AttentionParams& p, const PrefillData& data, int batch, int token,
                          int head, int number) {
  unit.x_to = unit.y_to = nullptr;
  const int key = length_of(data, batch, p.kv_len) - p.q_len + token;
  if (key < 0) return;
  KeyPlace place{batch, head, key};
  if constexpr (PAGE_SIZE > 0) {
    place.batch = data.table[static_cast<long long>(batch) * data.max_pages + key / static_cast<int>(PAGE_SIZE)];
    place.row = key % static_cast<int>(PAGE_SIZE);
    if (!is_place(p, place)) return;
  }
  const bool of_v = number >= turning + resting;
  const NewTokens& tokens = data.tokens;
  const void* const from = of_v ? tokens.v : tokens.k;
  void* const to = const_cast<void*>(of_v ? p.v : p.k);
  const long long source = index_of(of_v ? tokens.v_strides : tokens.k_strides, {batch, head, token});
  const long long target = index_of(of_v ? p.v_strides : p.k_strides, place);
  if (number >= turning) {
    const int at = of_v ? (number - turning - resting) * run : 2 * half + (number - turning) * run;
    unit.x = run_at(from, source + at);
    unit.x_to = &run_at(to, target + at);
    return;
  }
  const int x_at = INTERLEAVED ? 2 * number * run : number * run, y_at = INTERLEAVED ? x_at + run : half + x_at;
  const long long angles = static_cast<long long>(key) * half + number * run;
  unit.x = run_at(from, source + x_at);
  unit.y = run_at(from, source + y_at);
  unit.cosines = *reinterpret_cast<const Angles*>(tokens.cosines + angles);
  unit.sines = *reinterpret_cast<const Angles*>(tokens.sines + angles);
  unit.x_to = &run_at(to, target + x_at);
  unit.y_to = &run_at(to, target + y_at);
}

APPEND_FUNCTION void write(OnTheWay& unit) {
  if (!unit.x_to) return;
  if (unit.y_to) {
    turn(unit.x, unit.y, unit.cosines.of, unit.sines.of);
    *static_cast<Run*>(unit.y_to) = unit.y;
  }
  *static_cast<Run*>(unit.x_to) = unit.x;
}

/// Writes this thread's units of a share. In a GPU's threadgroup of at most 512 threads, a thread has enough registers
/// to load two units at a time, and waits only once for both.
template <int THREADS>
APPEND_FUNCTION void write_share(const AttentionParams& p, const PrefillData& data, int share, int thread) {
  // The divisions are in 32 bits, because a division of 64 bits is a function call. In a kernel with a function call
  // ptxas serialises all `wgmma` instructions (its warning C7520).
  const int tokens = p.batch * p.q_len, in_share = (tokens + data.shares - 1) / data.shares;
  const int first = share * in_share, end = first + in_share < tokens ? first + in_share : tokens;
  if (first >= end) return;
  const unsigned of_token = p.kv_heads * units, all = (end - first) * of_token;
  constexpr int at_once = THREADS == 1 || THREADS > 512 ? 1 : 2;
  for (unsigned begin = thread; begin < all; begin += at_once * THREADS) {
    OnTheWay several[at_once];
    UNROLL for (int j = 0; j < at_once; ++j) {
      const unsigned i = begin + j * THREADS;
      several[j].x_to = nullptr;
      if (i >= all) continue;
      const int token = first + static_cast<int>(i / of_token), rest = static_cast<int>(i % of_token);
      read(several[j], p, data, token / p.q_len, token % p.q_len, rest / units, rest % units);
    }
    UNROLL for (int j = 0; j < at_once; ++j) write(several[j]);
  }
}

}  // namespace append

#ifdef __CUDACC__
template <int THREADS>
DEVICE void before_all(const AttentionParams& p, unsigned char* memory) {
  const PrefillData data = *static_cast<const PrefillData*>(p.score_data);  // read once
  volatile unsigned& taken = *reinterpret_cast<volatile unsigned*>(memory);
  // Tensor copies (TMA) read the written tokens through the async proxy, which needs a fence of its own.
  const auto fence = [] {
    __threadfence();
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
  };
  // Each counter gets one call of add_one() for every share, and one more from every threadgroup.
  const unsigned count = data.shares + gridDim.x * gridDim.y * gridDim.z;
  while (true) {
    if (threadIdx.x == 0) taken = append::add_one(data.counters, count);
    __syncthreads();
    const unsigned share = taken;
    __syncthreads();
    if (share >= data.shares) break;
    append::write_share<THREADS>(p, data, share, threadIdx.x);
    fence();
    __syncthreads();
    if (threadIdx.x == 0) append::add_one(data.counters + 1, count);
  }
  if (threadIdx.x == 0) {
    append::wait_for(data.counters + 1, data.shares);
    append::add_one(data.counters + 1, count);
  }
  __syncthreads();
  fence();
}
#else
template <int THREADS>
INLINE void before_all(const AttentionParams& p, const Threadgroup& group) {
  const PrefillData data = *static_cast<const PrefillData*>(p.score_data);  // read once
  const auto shares = static_cast<unsigned>(data.shares);
  const unsigned count = shares + group.count[0] * group.count[1] * group.count[2];
  for (unsigned share; (share = append::add_one(data.counters, count)) < shares;) {
    append::write_share<1>(p, data, static_cast<int>(share), 0);
    append::add_one(data.counters + 1, count);
  }
  append::wait_for(data.counters + 1, shares);
  append::add_one(data.counters + 1, count);
}
#endif
