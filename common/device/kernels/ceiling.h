// Parameters of the kernels that measure a device's ceilings (its highest rates), for host and kernels.
#pragma once

#include "common/kernel/spaces.h"

/// Each threadgroup copies one contiguous part, a multiple of 256 bytes.
struct CopyParams {
  const GLOBAL void* source;
  GLOBAL void* target;
  unsigned INT64 part_bytes;
};

/// Each threadgroup reads one contiguous part, a multiple of 256 bytes. `result` gets a float of each thread (GPUs)
/// or of each lane (cpu), so that the compiler cannot leave out a load.
struct ReadParams {
  const GLOBAL void* source;
  GLOBAL float* result;
  unsigned INT64 part_bytes;
};

/// `result` gets one float per thread (GPUs) or lane (cpu), so that the compiler cannot leave out the arithmetic. An
/// iteration of ceiling_fma replaces each sum by sum * factor + addend. With |factor| < 1 the sums stay finite.
struct ArithmeticParams {
  GLOBAL float* result;
  INT64 iterations;
  float factor, addend;
};

/// For the kernels of GPUs. copy_threads (of ceiling_copy and ceiling_read) is large, because many threads that each
/// copy little come closest to the memory's peak bandwidth. ceiling_m, ceiling_n and ceiling_row_bytes are the shape of
/// cuda's ceiling_mma.
#ifdef __METAL_VERSION__
constexpr constant int ceiling_threads = 128, copy_threads = 256;
#else
constexpr int ceiling_threads = 128, copy_threads = 512, ceiling_m = 64, ceiling_n = 256, ceiling_row_bytes = 128;

/// Flops of a threadgroup in an iteration of ceiling_amx: four products of 16 x 32 by 32 x 16.
constexpr double ceiling_amx_flops = 4 * 2.0 * 16 * 32 * 16;
#endif
