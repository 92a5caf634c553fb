// The modifiers of a score that score_run_time.h reads at run time, for host and kernels.
#pragma once

#include "common/attention/kernels/modifiers/modifiers.h"

struct RunTimeModifiers {
  ModifierData tables;  // the first member: all hooks find it at the start of their data
  float soft_cap;       // the cap; 0: none
  int alibi;            // 1: on
  int bias;             // 0, BIAS_OF_ROWS or BIAS_OF_KEYS
};
