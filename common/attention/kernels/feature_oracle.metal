// feature_oracle.cpu.cpp in the Metal dialect, in float, because Metal has no double. The host only compiles this
// kernel, to find errors in a user's text before it measures anything.
#include "common/kernel/metal.h"

namespace {
#include "common/attention/kernels/user_feature.h"
}

kernel void feature_oracle(device float* values [[buffer(0)]]) { values[0] = feature(values[0]); }
