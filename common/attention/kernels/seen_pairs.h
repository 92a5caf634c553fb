// What a GPU's kernels make of the mask hook: bits for the scores that a thread holds of a matrix product.
#pragma once

#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/kernel/cuda.h"

/// Of KEYS / 2 scores of two rows, number i being query + i / 2 % 2 * 8 and key + i / 4 * 8 + i % 2: whether the pair
/// takes part is bit i % 32 of word i / 32. Rows that do not exist are taken for the nearest that does.
template <int KEYS>
struct SeenPairs {
  unsigned words[(KEYS / 2 + 31) / 32];

  DEVICE bool operator[](int i) const { return words[i / 32] >> i % 32 & 1; }

  /// One text for all scores: a rule may be long.
  DEVICE void find(int query, int key, const ScoreContext& context) {
    int rows[2], begin[2], end[2];
    UNROLL for (int r = 0; r < 2; ++r) {
      rows[r] = max(0, min(query + r * 8, context.q_len - 1));
      const KeyRange range = visible_keys(rows[r], context);
      begin[r] = range.begin;
      end[r] = min(range.end, context.kv_len);
    }
    UNROLL for (int word = 0; word < (KEYS / 2 + 31) / 32; ++word) {
      unsigned bits = 0;
#pragma unroll 1
      for (int i = 0; i < 32 && word * 32 + i < KEYS / 2; i += 4) {
        UNROLL for (int j = 0; j < 4; ++j) {
          const int r = j / 2, k = key + (word * 32 + i) * 2 + j % 2;
          if (begin[r] <= k && k < end[r] && visible(rows[r], k, context)) bits |= 1u << (i + j);
        }
      }
      words[word] = bits;
    }
  }
};
