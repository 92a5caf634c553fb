// A query sees the keys in its range that all rules allow. Range and own key are as in keys.h.
//   WINDOW_LEFT, WINDOW_RIGHT   as in keys.h; this file has the window only with WINDOW_BY_MASK, which is 1 with
//                               GLOBAL_TOKENS too
//   GLOBAL_TOKENS               in addition to the window: the first GLOBAL_TOKENS keys, and all keys for a query whose
//                               own key is one of these first keys (Beltagy et al. 2020, Longformer)
//   BLOCK_SPARSE                the blocks of 128 own keys x 128 keys whose bit is set in a table
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/modifiers/modifiers.h"

#define MASK_IS_NONE (!WINDOW_BY_MASK && BLOCK_SPARSE == 0)

static inline bool in_window(int own, int k) {
  if (GLOBAL_TOKENS != 0 && (k < static_cast<int>(GLOBAL_TOKENS) || own < static_cast<int>(GLOBAL_TOKENS))) return true;
  return (WINDOW_LEFT < 0 || k >= own - static_cast<int>(WINDOW_LEFT)) &&
         (WINDOW_RIGHT < 0 || k <= own + static_cast<int>(WINDOW_RIGHT));
}

static inline bool in_block(int own, int k, const ScoreContext& context) {
  const int row = own < 0 ? 0 : own / sparse_block, column = k / sparse_block;
  const GLOBAL unsigned* const table = table_at<unsigned>(context, modifiers_of(context).blocks);
  return table[row * sparse_words(context.kv_len) + column / 32] >> column % 32 & 1;
}

static inline bool visible([[maybe_unused]] int q, [[maybe_unused]] int k,
                           [[maybe_unused]] const ScoreContext& context) {
  [[maybe_unused]] const int own = q + context.kv_len - context.q_len;
  bool seen = true;
  if constexpr (WINDOW_BY_MASK) seen = in_window(own, k);
  if constexpr (BLOCK_SPARSE != 0) seen = seen && in_block(own, k, context);
  return seen;
}
