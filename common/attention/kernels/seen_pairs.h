// What a GPU's kernels make of the mask hook: bits for the scores that a thread holds of a matrix product.
#pragma once

#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/kernel/cuda.h"

/// Of a thread's KEYS / 4 scores of one row, number i being key + i / 2 * 8 + i % 2: whether the pair takes part is bit
/// i % 32 of word i / 32.
template <int KEYS>
struct SeenKeys {
  unsigned words[(KEYS / 4 + 31) / 32];

  DEVICE bool operator[](int i) const { return words[i / 32] >> i % 32 & 1; }

  /// A query that does not exist is taken for the nearest that does. One text for all scores: a rule may be long.
  DEVICE void find(int query, int key, const ScoreContext& context) {
    query = max(0, min(query, context.q_len - 1));
    const KeyRange range = visible_keys(query, context);
    const int end = min(range.end, context.kv_len);
    UNROLL for (int word = 0; word < (KEYS / 4 + 31) / 32; ++word) {
      unsigned bits = 0;
#pragma unroll 1
      for (int i = word * 32; i < (word + 1) * 32 && i < KEYS / 4; i += 2) {
        UNROLL for (int j = 0; j < 2; ++j) {
          const int k = key + i * 4 + j;
          if (range.begin <= k && k < end && visible(query, k, context)) bits |= 1u << (i % 32 + j);
        }
      }
      words[word] = bits;
    }
  }
};
