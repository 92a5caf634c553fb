// Applies the score function to a row of scores in double precision, for the oracle (the reference results of tests and
// experiments). The host replaces user_score.h by a text that calls a user's function, or by the text of a built-in
// function, which includes math_double.h. This header defines `float` as `double`, until the #undef below.
//
// Grid: as many threads as keys, or more.
//
// Checked: score_oracle[] without spills
#include "common/attention/kernels/score_oracle.h"
#include "common/kernel/cuda.h"

namespace {
#include "common/attention/kernels/user_score.h"
}
#undef float

extern "C" __global__ void score_oracle(const __grid_constant__ ScoreOracleParams p) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < p.keys) p.scores[k] = score(p.scores[k], p.q, k, p.context);
}
