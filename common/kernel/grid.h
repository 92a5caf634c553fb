// The cuda dialect: how the threadgroups of a launch share work and tell each other what they have written.
#pragma once

#include "common/kernel/cuda.h"

// ---- a persistent grid takes numbered items, each threadgroup first the item of its own number. `counters` [2] are 0
// before and after every launch.

/// Returns the number of the next item that no threadgroup has taken.
DEVICE unsigned next_item(unsigned* counters) { return gridDim.x + atomicAdd(counters, 1); }

/// Every threadgroup calls this function once, when no items are left. The last call sets the counters back to 0, and
/// returns true.
DEVICE bool leave(unsigned* counters) {
  __threadfence();
  if (atomicAdd(counters + 1, 1) != gridDim.x - 1) return false;
  counters[0] = 0;
  counters[1] = 0;
  return true;
}

// ---- flags in device memory. A thread that has loaded a flag sees all that was stored before the flag.

DEVICE void store_flag(unsigned* flag, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
DEVICE unsigned load_flag(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
