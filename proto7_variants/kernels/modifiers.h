// What the hooks of proto7_variants read at run time, as host and kernels see it: one block of memory, this head first,
// then the tables. A table begins `offset` bytes after the head.
#pragma once

#include "common/attention/kernels/attention.h"

struct ModifierData {
  int slopes;          // ALIBI: float [q_heads]
  int sinks;           // SINKS: float [q_heads]
  int lengths;         // LENGTHS: int [batch], keys of each sequence
  int documents;       // DOCUMENTS: KeyRange [kv_len], the document of each key
  int bias;            // BIAS: float, element (b, h, q, k) at the sum of index times stride
  int blocks;          // BLOCK_SPARSE: a bit for each block of keys, [blocks of queries][sparse_words]
  int cosines, sines;  // ROTARY_DIM: float [keys, ROTARY_DIM / 2], from key 0; queries before it have theirs before
  long long bias_strides[4];
};

/// Positions of a block, and words of its row of bits.
constexpr int sparse_block = 128;
constexpr int sparse_words(int kv_len) { return (kv_len + 32 * sparse_block - 1) / (32 * sparse_block); }

/// Whether the window is a rule of mask.h, and no range of keys.h.
#define WINDOW_IN_MASK (WINDOW_BY_MASK || GLOBAL_TOKENS != 0)

static inline const ModifierData& modifiers_of(const ScoreContext& context) {
  return *static_cast<const ModifierData*>(context.data);
}

template <typename T>
static inline const T* table_at(const ScoreContext& context, int offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(context.data) + offset);
}
