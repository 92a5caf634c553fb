// The larger of x and 0, and NaN for NaN. A query or key without a positive element becomes all zeros.
#pragma once

#define FEATURE_IS_IDENTITY 0

static inline float feature(float x, const void* /*data*/) { return x < 0 ? 0 : x; }
