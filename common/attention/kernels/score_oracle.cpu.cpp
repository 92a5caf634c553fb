// Applies the score function to a row of scores in double precision, for the oracle (the reference results of tests and
// experiments). The host replaces user_score.h by a text that calls a user's function, or by the text of a built-in
// function, which includes math_double.h. This header defines `float` as `double`, until the #undef below.
//
// Grid: one threadgroup.
#include "common/attention/kernels/score_oracle.h"

#include "common/kernel/cpu.h"

namespace {
#include "common/attention/kernels/user_score.h"
}
#undef float

extern "C" void score_oracle(const ScoreOracleParams* params, const Threadgroup*) {
  const ScoreOracleParams& p = *params;
  for (int k = 0; k < p.keys; ++k) p.scores[k] = score(p.scores[k], p.q, k, p.context);
}
