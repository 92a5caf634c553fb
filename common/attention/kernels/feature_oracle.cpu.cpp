// Applies the feature map to numbers, for the oracle. In the text of the map, math_double.h turns every `float` into
// `double`.
//
// Grid: one threadgroup.
#include "common/attention/kernels/feature_oracle.h"

#include "common/kernel/cpu.h"

namespace {
#include "common/attention/kernels/user_feature.h"
}
#undef float

extern "C" void feature_oracle(const FeatureOracleParams* params, const Threadgroup*) {
  for (int i = 0; i < params->count; ++i) params->values[i] = feature(params->values[i]);
}
