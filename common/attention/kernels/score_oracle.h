// Parameters of the kernel that applies a score function to a row in double precision, as host and kernel see them.
#pragma once

#include "common/attention/kernels/attention.h"

struct ScoreOracleParams {
  double* scores;  // that of key k at scores[k]; changed in place
  int keys, q;
  ScoreContext context;
};
