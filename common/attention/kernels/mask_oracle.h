// Parameters of the kernel that evaluates a mask function for some queries of a head, as host and kernel see them.
#pragma once

#include "common/attention/kernels/attention.h"

struct MaskOracleParams {
  unsigned char* visible;  // [rows][kv_len]: 1 where the pair is seen
  KeyRange* bounds;        // [rows]: what keys() says; all keys where there is none
  int rows, first, step;   // row i is query first + i * step
  ScoreContext context;
};
