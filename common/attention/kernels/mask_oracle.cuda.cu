// mask_oracle.cpu.cpp in the CUDA dialect.
//
// Grid: a threadgroup for each row.
//
// Checked: mask_oracle[] without spills
#include "common/attention/kernels/mask_oracle.h"
#include "common/kernel/cuda.h"

namespace {
#include "common/attention/kernels/user_mask.h"
}

extern "C" __global__ void mask_oracle(const __grid_constant__ MaskOracleParams p) {
  const int row = blockIdx.x, q = p.first + row * p.step, keys = p.context.kv_len;
  const KeyRange bound = bound_of(q, p.context);
  unsigned char* const seen = p.visible + static_cast<long long>(row) * keys;
  if (threadIdx.x == 0) p.bounds[row] = bound;
  for (int k = threadIdx.x; k < keys; k += blockDim.x) {
    seen[k] = bound.begin <= k && k < bound.end && visible(q, k, p.context);
  }
}
