// Feature map hook: the function that is applied to each element of q and k, as float. This file is the identity; a
// caller puts another text in its place (KernelSource::includes["common/linear/kernels/feature.h"]), one of features/
// or a user's. A kernel includes it within no namespace, behind the header of its dialect.
#pragma once

/// False in every other text.
#define FEATURE_IS_IDENTITY 1

/// `data` is LinearParams::feature_data.
static inline float feature(float x, const void* /*data*/) { return x; }
