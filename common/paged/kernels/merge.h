// The parameters of the kernel `merge`, which joins attention over the keys that all sequences begin with (the prefix)
// and attention over each sequence's own keys. Host and kernels share this file; it includes only headers of kernels.
#pragma once

#include "common/attention/kernels/attention.h"

/// Two results in f32, each with its natural log-sum-exp: over the prefix [heads, batch, HEAD_DIM] and [heads, batch],
/// over a sequence's own keys [batch, heads, HEAD_DIM] and [batch, heads]. The log-sum-exp over no keys is -infinity.
/// o is [batch, heads, 1, HEAD_DIM]; lse, [batch, heads], may be null.
struct MergeParams {
  const float *prefix_o, *prefix_lse, *own_o, *own_lse;
  void* o;
  float* lse;
  TensorStrides o_strides;
  int batch, heads;
};
