// A pair is visible if neither the modifiers of mask.h nor the user's mask function hides the pair.
#pragma once

#define visible modified_visible
#include "common/attention/kernels/modifiers/mask.h"
#undef visible
#include "proto7_variants/kernels/user_functions.h"

#undef MASK_IS_NONE
#define MASK_IS_NONE 0

static inline bool visible(int q, int k, const ScoreContext& context) {
  return modified_visible(q, k, context) && user_mask::visible(q, k, context);
}
