// Parameters of the kernels that measure what a device reaches at most, as host and kernel see them.
#pragma once

/// Copies `bytes`, a multiple of 256 times the threadgroups; each threadgroup copies one contiguous part.
struct CopyParams {
  const void* source;
  void* target;
  unsigned long long bytes;
};

/// `result` takes one float per lane, so that the arithmetic cannot be left out. The operands come at run time, so that
/// it cannot be done at compile time either: sums become sum * factor + addend, with |factor| < 1 for finite ones.
struct ArithmeticParams {
  float* result;
  long long iterations;
  float factor, addend;
};

/// Of the kernels in the cuda dialect: threads of a threadgroup, and the product of M x K and K x N that it does in an
/// iteration of ceiling_mma.
constexpr int ceiling_threads = 128, ceiling_m = 64, ceiling_n = 256, ceiling_k = 64;
