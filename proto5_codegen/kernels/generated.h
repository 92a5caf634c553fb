// Parameters of the kernels of proto5_codegen, for the host and for kernels of every dialect. Kernels compile without a
// standard library, so this header includes only headers of kernels.
#pragma once

#include "common/kernel/spaces.h"

/// What a kernel computes, for each head.
enum CodegenWork {
  WORK_SCORES = 0,     // out [q_len, kv_len] = scale q k^T
  WORK_SOFTMAX = 1,    // out [q_len, kv_len] = softmax of each row of `in`
  WORK_VALUES = 2,     // out [q_len, head_dim] = in v
  WORK_ATTENTION = 3,  // out [q_len, head_dim] = softmax(scale q k^T) v
  WORK_MODIFIED = 4    // attention in which a score s becomes soft_cap tanh(s / soft_cap) + slope (key - query)
};

/// The cap of WORK_MODIFIED.
constexpr CONSTANT int soft_cap = 30;

/// Tensors are dense: q [heads, q_len, head_dim]; k, v [heads, kv_len, head_dim]; in [heads, q_len, kv_len]; slopes
/// [heads], f32. `heads` counts the heads of all sequences. A pointer that a work does not read is null. In a causal
/// work query i sees the keys up to i, and q_len equals kv_len.
struct CodegenParams {
  const GLOBAL void *q, *k, *v, *in;
  GLOBAL void* out;
  const GLOBAL float* slopes;
  int heads, q_len, kv_len;
  float scale;
};
