// Parameters of the kernel that applies a score function to a row in double precision, for host and kernel.
#pragma once

#include "common/attention/kernels/attention.h"

struct ScoreOracleParams {
  double* scores;  // scores[k] is the score of key k; changed in place
  int keys, q;
  ScoreContext context;
};
