// Feature map hook: the function that is applied to each element of q and k, as float. The function in this file
// returns x unchanged. To use another function, a caller sets
// KernelSource::includes["common/linear/kernels/feature.h"] to the source of a replacement: a file of features/, or a
// user's code. A kernel includes this file outside of namespaces, after the header of its dialect.
#pragma once

#include "common/kernel/spaces.h"

/// A replacement of this file must define this macro as 0.
#define FEATURE_IS_IDENTITY 1

/// `data` is LinearParams::feature_data.
static inline float feature(float x, const GLOBAL void* /*data*/) { return x; }
