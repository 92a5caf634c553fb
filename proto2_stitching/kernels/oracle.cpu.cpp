// The score function on a row of scores, for the oracle. Its text comes with `double` for `float` (math_double.h).
//
// Grid: one threadgroup.
#include "proto2_stitching/kernels/oracle.h"

#include "common/kernel/cpu.h"

namespace {
#include "proto2_stitching/kernels/function.h"
}
#undef float

extern "C" void score_oracle(const OracleParams* params, const Threadgroup*) {
  const OracleParams& p = *params;
  for (int k = 0; k < p.keys; ++k) p.scores[k] = score(p.scores[k], p.q, k, p.context);
}
