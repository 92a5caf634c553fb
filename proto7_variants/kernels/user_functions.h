// The user's functions (--score-function, --mask-function), each in a scope of its own. The hooks beside this file that
// take them in are user_score.h, and user_keys.h and user_visible.h; the host puts these in place of score.h, or keys.h
// and mask.h, where there is a function of the kind, and defines USER_SCORE and USER_MASK, 1 where there is one.
#pragma once

#include "common/attention/kernels/attention.h"
#ifdef __CUDACC__
#include "common/kernel/cuda.h"
#else
#include "common/kernel/cpu.h"
// A loop with a call would be no vector code.
#pragma clang attribute push(__attribute__((always_inline)), apply_to = function)
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

#ifndef __CUDACC__
#pragma clang attribute pop
#endif
