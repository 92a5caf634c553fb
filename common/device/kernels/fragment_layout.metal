// Checks the layout of simdgroup matrices that kernels assume (common/kernel/metal.h). `wrong` gets the number of
// elements that do not lie where the layout says. Kernels with matrices may run only if the number is 0.
//
// Grid: (1); 32 threads; threadgroup memory: 64 floats.
#include "common/kernel/metal.h"

struct FragmentLayoutParams {
  device uint* wrong;
};

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

kernel void fragment_layout(constant FragmentLayoutParams& p [[buffer(0)]],
                            threadgroup float* memory [[threadgroup(0)]], uint lane [[thread_index_in_simdgroup]]) {
  uint wrong = misplaced<float>(memory, lane);
  wrong += misplaced<half>(reinterpret_cast<threadgroup half*>(memory), lane);
  wrong += misplaced<bfloat>(reinterpret_cast<threadgroup bfloat*>(memory), lane);
  wrong = simd_sum(wrong);
  if (lane == 0) *p.wrong = wrong;
}
