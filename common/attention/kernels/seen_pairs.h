// Asks the keys hook and the mask hook which pairs of a query and a key take part. The answers are one bit for each
// score that a thread holds. Only CUDA kernels with matrix instructions include this file.
#pragma once

#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/kernel/cuda.h"

/// Four threads share a row of KEYS scores. SeenKeys has a bit for each of the KEYS / 4 scores of one thread. The bit
/// of score i is bit i % 32 of words[i / 32], and says whether the pair of this score takes part. The key of score 0 is
/// `key`, the argument of find(). The key of score i is key + i / 2 * 8 + i % 2.
template <int KEYS>
struct SeenKeys {
  unsigned words[(KEYS / 4 + 31) / 32];

  DEVICE bool operator[](int i) const { return words[i / 32] >> i % 32 & 1; }

  /// Finds the bits. A query that does not exist gets the bits of the nearest query that exists. The loop over pairs
  /// of neighbouring scores is not unrolled, because the code of visible() may be long.
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
