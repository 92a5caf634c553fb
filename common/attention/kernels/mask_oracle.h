// Parameters of the kernel `mask_oracle`, which evaluates a user's mask function for some queries of a head. For host
// and kernel.
#pragma once

#include "common/attention/kernels/attention.h"

struct MaskOracleParams {
  unsigned char* visible;  // [rows][kv_len]: 1 where the pair is seen
  KeyRange* bounds;        // [rows]: what the user's keys() returns, or all keys if there is no keys()
  int rows, first, step;   // row i is query first + i * step
  ScoreContext context;
};
