// A pair takes part if its bit is set (mask_bits.h). The bits combine a caller's mask, the rules of mask.h and the
// ranges of keys.h.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/mask_bits.h"

namespace in_the_bits {
#include "common/attention/kernels/modifiers/mask.h"
}

#undef MASK_IS_NONE
#define MASK_IS_NONE 0

using MaskWord = MaskWordOf<mask_word_bytes(BLOCK_C)>::type;

static inline MaskWord mask_word(int q, int k, const ScoreContext& context) {
  const MaskBits& bits = modifiers_of(context).mask;
  const INT64 word = mask_word_index(bits, context.batch, context.head, q, k, context.kv_len, BLOCK_C);
  return static_cast<const MaskWord*>(bits.words)[word];
}

static inline bool visible(int q, int k, const ScoreContext& context) {
  const int bit = k % static_cast<int>(BLOCK_C) / 8 * 2 + k % 2;
  return mask_word(q, k, context) >> bit & 1;
}
