// The kernels that measure the highest rates of copies and of reads (ceiling.cpu.cpp). Includes come first in the files
// that include this one.
#pragma once

namespace {

using Lanes = Vector<float, VECTOR_WIDTH>;

INLINE void store_copied(float* to, Lanes value) {
#ifdef __clang__
  if constexpr (NON_TEMPORAL != 0) {
    __builtin_nontemporal_store(value, reinterpret_cast<Lanes*>(to));
    return;
  }
#endif
  store(to, value);
}

}  // namespace

extern "C" void ceiling_copy(const CopyParams* params, const Threadgroup* group) {
  constexpr int unroll = 4;
  const unsigned long long count = params->part_bytes / sizeof(float);
  const float* source = static_cast<const float*>(params->source) + group->index[0] * count;
  float* target = static_cast<float*>(params->target) + group->index[0] * count;
  for (unsigned long long i = 0; i < count; i += unroll * VECTOR_WIDTH) {
    Lanes values[unroll];
    UNROLL for (int j = 0; j < unroll; ++j) values[j] = load<Lanes>(source + i + j * VECTOR_WIDTH);
    UNROLL for (int j = 0; j < unroll; ++j) store_copied(target + i + j * VECTOR_WIDTH, values[j]);
  }
  // Waits until other threads can see the non-temporal stores.
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

extern "C" void ceiling_read(const ReadParams* params, const Threadgroup* group) {
  constexpr int unroll = 8;  // so that successive additions are independent
  constexpr unsigned long long step = unroll * VECTOR_WIDTH;
  const unsigned long long count = params->part_bytes / sizeof(float);
  const float* source = static_cast<const float*>(params->source) + group->index[0] * count;
  Lanes sums[unroll] = {};
  unsigned long long i = 0;
  for (; i + step <= count; i += step) {
    UNROLL for (int j = 0; j < unroll; ++j) sums[j] += load<Lanes>(source + i + j * VECTOR_WIDTH);
  }
  for (; i < count; i += VECTOR_WIDTH) sums[0] += load<Lanes>(source + i);
  Lanes total = {};
  UNROLL for (int j = 0; j < unroll; ++j) total += sums[j];
  store(params->result + group->index[0] * VECTOR_WIDTH, total);
}
