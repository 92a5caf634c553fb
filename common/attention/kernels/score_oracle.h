// Parameters of the kernel score_oracle, which applies a score function to a row of scores in double precision.
#pragma once

#include "common/attention/kernels/attention.h"

struct ScoreOracleParams {
  double* scores;  // scores[k] is the score of key k; changed in place
  int keys, q;
  ScoreContext context;
};
