// Feature map hook: the function that is applied to each element of q and k, as float. This file is the identity. A
// caller replaces it by another text (KernelSource::includes["common/linear/kernels/feature.h"]), from features/ or
// from a user. A kernel includes it outside of namespaces, after the header of its dialect.
#pragma once

#include "common/kernel/spaces.h"

/// Every other text defines it as 0.
#define FEATURE_IS_IDENTITY 1

/// `data` is LinearParams::feature_data.
static inline float feature(float x, const GLOBAL void* /*data*/) { return x; }
