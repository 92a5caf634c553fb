// The modifiers of a score that score_run_time.h reads at run time, as host and kernels see them.
#pragma once

#include "common/attention/kernels/modifiers/modifiers.h"

struct RunTimeModifiers {
  ModifierData tables;  // first: all hooks find it where data begins
  float soft_cap;       // the cap; 0: none
  int alibi;            // 1: on
  int bias;             // 0, BIAS_OF_ROWS or BIAS_OF_KEYS
};
