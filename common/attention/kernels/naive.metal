// Variant `naive`: naive.cpu.cpp in the Metal dialect. Each thread computes scores of some keys, then columns of O. The
// kernel has not run on Apple hardware yet.
//
// The kernel takes all hooks except before.h. Function constants: HEAD_DIM (at most 256), CAUSAL, IN_TYPE, OUT_TYPE.
// Threadgroup memory, in floats: scores [kv_len], then three numbers of each simdgroup. 32 KB hold at most 8180 keys.
// Grid: (q_len, q_heads, batch); naive_threads threads. Accumulators of a lane: 1.
#include "common/attention/kernels/attention_row_metal.h"
#include "common/attention/kernels/naive.h"
#include "common/kernel/metal.h"

constexpr constant int THREADS = naive_threads, SIMDGROUPS = THREADS / SIMD;

kernel void flash_forward(constant AttentionParams& p [[buffer(0)]], threadgroup float* scores [[threadgroup(0)]],
                          uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  (void)CAUSAL;  // counts as a use of CAUSAL; a keys hook need not use CAUSAL
  const AttentionRow row(p, static_cast<int>(group.z), static_cast<int>(group.y), static_cast<int>(group.x));
  const int thread_number = static_cast<int>(thread_index);
  threadgroup float* const maxima = scores + p.kv_len;
  threadgroup float* const sums = maxima + SIMDGROUPS;
  threadgroup float* const strange = sums + SIMDGROUPS;
  Softmax own;
  if (thread_index == 0) own.take(row.sink());
  for (int key = row.begin + thread_number; key < row.end; key += THREADS) {
    const float s = row.score_of(key);
    scores[key] = s;
    own.take(s);
  }
  own = joined(own);
  if (lane == 0) {
    maxima[simdgroup] = own.maximum;
    sums[simdgroup] = own.sum;
    strange[simdgroup] = own.strange ? 1.0f : 0.0f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Softmax all;
  for (int i = 0; i < SIMDGROUPS; ++i) {
    all.maximum = max(all.maximum, maxima[i]);
    all.strange = all.strange || strange[i] != 0;
  }
  for (int i = 0; i < SIMDGROUPS; ++i) {
    if (sums[i] != 0) all.sum += sums[i] * power_of_e(maxima[i] - all.maximum);
  }
  // Each thread turns the scores that it has written into weights. A hidden key's score stays -infinity, so that the
  // key's row of V does not count, even if it is not finite.
  const float share = all.sum == 0 ? 0.0f : 1 / all.sum;
  for (int key = row.begin + thread_number; key < row.end; key += THREADS) {
    if (is_finite(scores[key])) scores[key] = power_of_e(scores[key] - all.maximum) * share;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int d = thread_number; d < HEAD_DIM; d += THREADS) {
    Dot output;
    for (int key = row.begin; key < row.end && !all.strange; ++key) {
      if (is_finite(scores[key])) output.add(scores[key], row.value_of(key, d));
    }
    row.store(d, output.times(1), all.strange);
  }
  if (thread_index == 0) row.store_lse(all.maximum, all.sum, all.strange);
}
