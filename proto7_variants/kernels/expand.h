// Parameters of the kernels that copy key/value heads for each query head. Host and kernels share this header, so it
// uses no standard library.
#pragma once

#include "common/kernel/spaces.h"

/// Strides in bytes; a row is contiguous.
struct ExpandStrides {
  INT64 batch, head, row;
};

/// `in`: [batch, kv_heads, rows, head_dim]; `out`: [batch, kv_heads * group, rows, head_dim].
struct ExpandTensor {
  const GLOBAL void* in;
  GLOBAL void* out;
  ExpandStrides in_strides, out_strides;
};

/// For the sequence b, the query head h and the row s: out[b, h, s] = in[b, h / group, s].
struct ExpandParams {
  ExpandTensor tensors[2];  // K and V
  int kv_heads, group;
  int rows;
  int tile_rows;  // the rows that a threadgroup copies
};

/// On a GPU: the most threads of a threadgroup, and the most rows that a CUDA thread copies, 16 bytes of each.
constexpr CONSTANT int expand_threads = 256, expand_rows = 4;
