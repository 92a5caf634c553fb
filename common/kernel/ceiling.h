// Parameters of the kernels that measure what a device reaches at most, as host and kernel see them.
#pragma once

/// Copies `bytes`, a multiple of 256 times the threadgroups; each threadgroup copies one contiguous part.
struct CopyParams {
  const void* source;
  void* target;
  unsigned long long bytes;
};

/// `result` takes one vector per threadgroup, so that the arithmetic cannot be left out. The operands come at run time,
/// so that it cannot be done at compile time either: sums become sum * factor + addend, with |factor| < 1 for finite
/// ones.
struct ArithmeticParams {
  float* result;
  long long iterations;
  float factor, addend;
};
