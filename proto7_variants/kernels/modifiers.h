// What the hooks of proto7_variants read at run time, as host and kernels see it: one block of memory, this head first,
// then the tables. A table begins `offset` bytes after the head.
#pragma once

#include "common/attention/kernels/attention.h"

struct ModifierData {
  int slopes;     // ALIBI: float [q_heads]
  int sinks;      // SINKS: float [q_heads]
  int lengths;    // LENGTHS: int [batch], keys of each sequence
  int documents;  // DOCUMENTS: KeyRange [kv_len], the document of each key
  int bias;       // BIAS: float, element (b, h, q, k) at the sum of index times stride
  int cosines,
      sines;  // ROTARY_DIM: float [keys, ROTARY_DIM / 2], the row of key 0; queries before it have theirs before
  long long bias_strides[4];
};

static inline const ModifierData& modifiers_of(const ScoreContext& context) {
  return *static_cast<const ModifierData*>(context.data);
}

template <typename T>
static inline const T* table_at(const ScoreContext& context, int offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(context.data) + offset);
}
