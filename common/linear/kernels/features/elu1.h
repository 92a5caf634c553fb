// elu(x) + 1 (Katharopoulos et al. 2020). The result is positive unless exp(x) underflows, so a normalised sum usually
// has a divisor above 0.
#pragma once

#include "common/kernel/spaces.h"

#ifdef __METAL_VERSION__
#include "common/kernel/metal.h"
#endif
#ifndef __CUDACC__
namespace feature_math {
#include "common/kernel/math.h"
}
using feature_math::expf;
#endif

#define FEATURE_IS_IDENTITY 0

// Both cases are computed for each element, so that no element needs a branch. For x > 0 the code computes expf(0), and
// does not use the result.
static inline float feature(float x, const GLOBAL void* /*data*/) {
  const float power = expf(x > 0 ? 0 : x);
  return x > 0 ? x + 1 : power;
}
