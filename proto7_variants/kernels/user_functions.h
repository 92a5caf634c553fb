// The user's functions (--score-function, --mask-function), each in a scope of its own. The hooks in this folder call
// them: user_score.h calls the score function, user_keys.h and user_visible.h call the mask function. Where there is a
// score function, the host puts user_score.h in the place of score.h. Where there is a mask function, it puts
// user_keys.h and user_visible.h in the place of keys.h and mask.h. The host defines USER_SCORE as 1 where there is a
// score function, else as 0, and USER_MASK likewise for the mask function.
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
