// Parameters of the kernel that evaluates a mask function for some queries of a head, for host and kernel.
#pragma once

#include "common/attention/kernels/attention.h"

struct MaskOracleParams {
  unsigned char* visible;  // [rows][kv_len]: 1 where the pair is seen
  KeyRange* bounds;        // [rows]: bound_of(): what the user's keys() returns, or all keys if there is no keys()
  int rows, first, step;   // row i is query first + i * step
  ScoreContext context;
};
