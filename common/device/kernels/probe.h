// The numbers that the kernel `probe` finds out about a GPU (probe.metal), for host and kernel. Kernels rest on the
// values in brackets.
#pragma once

#include "common/kernel/spaces.h"

enum Probed {
  probed_misplaced,    // elements of simdgroup matrices that do not lie where common/kernel/metal.h says [0]
  probed_width,        // lanes of a simdgroup [32]
  probed_last_word,    // the number that came back from the last word of threadgroup memory [12345]
  probed_bfloats,      // conversions to bfloat that do not round to nearest, ties to even [0]
  probed_finite_only,  // operations for which the compiler assumes finite numbers, or exact sums [0]
  probed_count
};
constexpr CONSTANT int probe_threads = 64;

struct ProbeParams {
  GLOBAL unsigned* found;       // [probed_count]
  const GLOBAL unsigned* zero;  // one 0, which the compiler does not know
  unsigned last_word;           // the index of the last word of threadgroup memory
};
