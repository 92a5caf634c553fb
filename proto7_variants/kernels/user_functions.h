// The user's functions (--score-function, --mask-function), each in a namespace of its own. Three files in this folder
// call these functions: user_score.h calls the score function, user_keys.h and user_visible.h call the mask function.
// If there is a score function, the host puts user_score.h in the place of score.h. If there is a mask function, the
// host puts user_keys.h and user_visible.h in the place of keys.h and mask.h. The host defines USER_SCORE as 1 if there
// is a score function, else as 0. It defines USER_MASK as 1 if there is a mask function, else as 0.
#pragma once

#include "common/attention/kernels/attention.h"
#ifdef __METAL_VERSION__
#include "common/kernel/metal.h"
#else
#ifdef __CUDACC__
#include "common/kernel/cuda.h"
#else
#include "common/kernel/cpu.h"
// Inlines all functions: a loop with a call would not become vector code.
#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
#endif
#endif

namespace {
#if USER_SCORE
namespace user_score {
#include "common/attention/kernels/user_score.h"
}
#endif
#if USER_MASK
namespace user_mask {
#include "common/attention/kernels/user_mask.h"
}
#endif
}  // namespace

#ifdef __METAL_VERSION__
#else
#ifndef __CUDACC__
#pragma clang attribute pop
#endif
#endif
