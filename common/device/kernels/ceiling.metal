// The ceilings of an Apple GPU: a copy, a read, multiply-adds in registers, and products of simdgroup matrices whose
// operands stay in registers. These kernels have not run on Apple hardware yet.
//
// Function constants: NON_TEMPORAL (changes nothing), ACCUMULATORS (independent chains of operations in a thread),
// IN_TYPE (the element type of the matrices). Launch: ceiling_threads threads per threadgroup (ceiling_copy and
// ceiling_read: copy_threads), no threadgroup memory.
#include "common/device/kernels/ceiling.h"
#include "common/kernel/metal.h"

kernel void ceiling_copy(constant CopyParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  (void)NON_TEMPORAL;  // Metal has no loads and stores that bypass the caches
  const ulong count = p.part_bytes / 16;
  const device uint4* const source = static_cast<const device uint4*>(p.source) + group.x * count;
  device uint4* const target = static_cast<device uint4*>(p.target) + group.x * count;
  for (ulong i = thread_index; i < count; i += copy_threads) target[i] = source[i];
}

kernel void ceiling_read(constant ReadParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]]) {
  const ulong count = p.part_bytes / 16;
  const device float4* const source = static_cast<const device float4*>(p.source) + group.x * count;
  float sum = 0;
  for (ulong i = thread_index; i < count; i += copy_threads) {
    const float4 values = source[i];
    sum += values.x + values.y + values.z + values.w;
  }
  p.result[group.x * static_cast<ulong>(copy_threads) + thread_index] = sum;
}

// In an iteration a threadgroup does 2 * ceiling_threads * ACCUMULATORS flops.
kernel void ceiling_fma(constant ArithmeticParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]]) {
  const float factor = p.factor, addend = p.addend;
  float sums[ACCUMULATORS];
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = static_cast<float>(i);
  for (long n = 0; n < p.iterations; ++n) {
    UNROLL for (int i = 0; i < ACCUMULATORS; ++i) sums[i] = fma(sums[i], factor, addend);
  }
  float total = 0;
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) total += sums[i];
  p.result[group.x * ceiling_threads + thread_index] = total;
}

// In an iteration a simdgroup does 2 * 8 * 8 * 8 * ACCUMULATORS flops. The exact product of the operands is 0, so the
// sums stay finite: half of the elements in a row of `a` are p.factor, the others -p.factor, and all rows of `b` are
// equal.
kernel void ceiling_mma(constant ArithmeticParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]]) {
  typedef ElementOf<IN_TYPE>::type Element;
  simdgroup_matrix<Element, 8, 8> a, b;
  UNROLL for (int i = 0; i < 2; ++i) {
    const float sign = (thread_index + i) % 2 == 0 ? 1.0f : -1.0f;
    a.thread_elements()[i] = static_cast<Element>(sign * p.factor);
    b.thread_elements()[i] = static_cast<Element>(sign * p.addend);
  }
  simdgroup_matrix<float, 8, 8> sums[ACCUMULATORS];
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) {
    sums[i] = make_filled_simdgroup_matrix<float, 8, 8>(static_cast<float>(i));
  }
  for (long n = 0; n < p.iterations; ++n) {
    UNROLL for (int i = 0; i < ACCUMULATORS; ++i) simdgroup_multiply_accumulate(sums[i], a, b, sums[i]);
  }
  float total = 0;
  UNROLL for (int i = 0; i < ACCUMULATORS; ++i) total += sums[i].thread_elements()[0] + sums[i].thread_elements()[1];
  p.result[group.x * ceiling_threads + thread_index] = total;
}
