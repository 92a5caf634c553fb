// Finds out what kernels assume about a GPU and about its compiler (probe.h). Kernels may run only if all assumptions
// hold.
//
// Grid: (1); probe_threads threads; all of threadgroup memory, at least 64 floats.
#include "common/device/kernels/probe.h"
#include "common/kernel/metal.h"

template <typename T>
static inline uint misplaced(threadgroup T* elements, uint lane) {
  for (uint i = lane; i < 64; i += SIMD) elements[i] = static_cast<T>(static_cast<float>(i));
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_matrix<T, 8, 8> matrix;
  simdgroup_load(matrix, elements, 8);
  const float first = static_cast<float>(fragment_row(lane) * 8 + fragment_column(lane));
  const uint count = (static_cast<float>(matrix.thread_elements()[0]) != first) +
                     (static_cast<float>(matrix.thread_elements()[1]) != first + 1);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  return count;
}

/// Returns whether the float with the bits `bits` becomes the bfloat with the bits `expected`.
static inline bool rounds(uint bits, ushort expected) {
  return as_type<ushort>(static_cast<bfloat>(as_type<float>(bits))) == expected;
}

kernel void probe(constant ProbeParams& p [[buffer(0)]], threadgroup float* memory [[threadgroup(0)]],
                  uint thread_index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]], uint width [[threads_per_simdgroup]]) {
  threadgroup uint* const words = reinterpret_cast<threadgroup uint*>(memory);
  if (thread_index == 0) words[p.last_word] = 12345;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index == probe_threads - 1) p.found[probed_last_word] = words[p.last_word];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup != 0) return;
  uint wrong = misplaced<float>(memory, lane);
  wrong += misplaced<half>(reinterpret_cast<threadgroup half*>(memory), lane);
  wrong += misplaced<bfloat>(reinterpret_cast<threadgroup bfloat*>(memory), lane);
  wrong = simd_sum(wrong);
  if (lane != 0) return;
  p.found[probed_misplaced] = wrong;
  p.found[probed_width] = width;
  const uint zero = *p.zero;
  p.found[probed_bfloats] = !rounds(zero + 0x3f808000, 0x3f80) + !rounds(zero + 0x3f818000, 0x3f82) +
                            !rounds(zero + 0x3f808001, 0x3f81) + !rounds(zero + 0xbf807fff, 0xbf80);
  const float not_finite = as_type<float>(zero + 0x7fc00000), large = as_type<float>(zero + 0x4cbebc20);  // NaN; 1e8
  p.found[probed_finite_only] = !(not_finite != not_finite) + ((large + 1) - large != 0);
}
