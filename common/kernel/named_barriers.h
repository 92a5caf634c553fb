// The cuda dialect: the hardware's barriers for some warps of a threadgroup.
#pragma once

#include "common/kernel/cuda.h"

/// Named barriers (1 to 15) of `threads` threads: named_sync waits for all threads, named_arrive does not wait.
DEVICE void named_sync(int id, int threads) { asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
