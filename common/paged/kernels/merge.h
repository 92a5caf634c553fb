// What host and kernels share that join attention over the keys that all sequences begin with and over those of each
// sequence. No other headers than the kernels' own.
#pragma once

#include "common/attention/kernels/attention.h"

/// Two answers in f32, each with its log-sum-exp, natural: of the prefix [heads, batch, HEAD_DIM] and [heads, batch], of
/// a sequence's own keys [batch, heads, HEAD_DIM] and [batch, heads]. An answer over no keys has -infinity. o is
/// [batch, heads, 1, HEAD_DIM]; lse, [batch, heads], may be null.
struct MergeParams {
  const float *prefix_o, *prefix_lse, *own_o, *own_lse;
  void* o;
  float* lse;
  TensorStrides o_strides;
  int batch, heads;
};
