// The parameters of the kernel `merge`, which joins attention over the keys that all sequences begin with (the prefix)
// and attention over each sequence's own keys. Host and kernels share this file; it includes only headers of kernels.
#pragma once

#include "common/attention/kernels/attention.h"

/// Over the prefix: prefix_o [heads, batch, HEAD_DIM] and prefix_lse [heads, batch]. Over a sequence's own keys: own_o
/// [batch, heads, HEAD_DIM] and own_lse [batch, heads]. Joined: o [batch, heads, 1, HEAD_DIM], of OUT_TYPE, and lse
/// [batch, heads], which may be null. Log-sum-exps are natural logarithms, and -infinity over no keys.
struct MergeParams {
  const GLOBAL float *prefix_o, *prefix_lse, *own_o, *own_lse;
  GLOBAL void* o;
  GLOBAL float* lse;
  TensorStrides o_strides;
  int batch, heads;
};
