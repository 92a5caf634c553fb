// Applies a user's feature map (of linear attention) to numbers in double precision, for the oracle. The host replaces
// user_feature.h by a text that includes math_double.h before the map; math_double.h makes `float` a macro for
// `double`, until the #undef below.
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
