// feature_oracle.cpu.cpp in the CUDA dialect.
//
// Grid: as many threads as numbers, or more.
//
// Checked: feature_oracle[] without spills
#include "common/attention/kernels/feature_oracle.h"
#include "common/kernel/cuda.h"

namespace {
#include "common/attention/kernels/user_feature.h"
}

extern "C" __global__ void feature_oracle(const __grid_constant__ FeatureOracleParams p) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.count) p.values[i] = feature(p.values[i]);
}
