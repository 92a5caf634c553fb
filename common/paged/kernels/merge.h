// The parameters of the kernel `merge`, which joins attention over the keys that all sequences begin with (the prefix)
// and attention over each sequence's own keys. Host and kernels share this file; it includes only headers of kernels.
#pragma once

#include "common/attention/kernels/attention.h"

/// The result over the prefix is prefix_o [heads, batch, HEAD_DIM] and prefix_lse [heads, batch]. The result over a
/// sequence's own keys is own_o [batch, heads, HEAD_DIM] and own_lse [batch, heads]. All four are f32. The joined
/// result is o [batch, heads, 1, HEAD_DIM], of OUT_TYPE, and lse [batch, heads], which is f32 and may be null.
/// Log-sum-exps are natural logarithms; the log-sum-exp over no keys is -infinity.
struct MergeParams {
  const GLOBAL float *prefix_o, *prefix_lse, *own_o, *own_lse;
  GLOBAL void* o;
  GLOBAL float* lse;
  TensorStrides o_strides;
  int batch, heads;
};
