// The user's functions (--score-function, --mask-function), each in a namespace of its own. The host replaces the hook
// score.h by user_score.h if there is a score function, and the hooks keys.h and mask.h by user_keys.h and
// user_visible.h if there is a mask function. The host defines USER_SCORE and USER_MASK: 1 if there is such a function,
// else 0.
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
