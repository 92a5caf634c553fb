// Replaces seen_pairs.h if mask_in_bits.h is the mask hook. A thread has BLOCK_C / 4 scores of a row, whose bits are
// one word of MaskBits.
#pragma once

#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/kernel/cuda.h"

/// As in seen_pairs.h.
template <int KEYS>
struct SeenKeys {
  static_assert(KEYS == BLOCK_C && KEYS <= 128);
  unsigned bits;

  DEVICE bool operator[](int i) const { return bits >> i & 1; }

  DEVICE void find(int query, int key, const ScoreContext& context) {
    bits = mask_word(max(0, min(query, context.q_len - 1)), key, context);
  }
};
