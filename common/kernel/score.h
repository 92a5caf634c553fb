// The score hook: what happens to a scaled score before the softmax. This file is the identity; an experiment puts
// another text in its place (KernelSource::includes["common/kernel/score.h"]) to add ALiBi, a soft cap, a window ...
// without a second kernel. A hook that returns -INFINITY masks the pair.
#pragma once

/// False in every other hook: lets a kernel fold log2(e) into the scale of Q.
#define SCORE_IS_IDENTITY 1

/// s: scale * (q . k); q and k count from the start of their sequence; data: AttentionParams::score_data.
static inline float score(float s, int /*batch*/, int /*head*/, int /*q*/, int /*k*/, const void* /*data*/) {
  return s;
}
