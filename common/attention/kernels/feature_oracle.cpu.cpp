// Applies a user's feature map (of linear attention) to numbers in double precision, for the oracle. The host replaces
// user_feature.h by a text that calls the map.
//
// Grid: one threadgroup.
#include "common/attention/kernels/feature_oracle.h"

#include "common/kernel/cpu.h"

namespace {
#include "common/attention/kernels/user_feature.h"
}

extern "C" void feature_oracle(const FeatureOracleParams* params, const Threadgroup*) {
  for (int i = 0; i < params->count; ++i) params->values[i] = feature(params->values[i]);
}
