// The data of modifiers that are newer than modifiers.h. This data follows the data of the older modifiers in memory,
// and is not in modifiers.h, because recorded figures hold only for the text with which the kernel was compiled. As in
// ModifierData, the members for tables are offsets in bytes.
#pragma once

#include "common/attention/kernels/modifiers/run_time.h"

struct LaterModifiers {
  RunTimeModifiers before;  // the first member: all hooks find it at the start of their data
  int starts;               // int [batch], the first key of each sequence after the padding (keys_from_starts.h)
  int tree;                 // long long [batch, q_len], the new tokens that a new token sees: bit i is new token i
                            // (score_in_trees.h)
  int cu_seqlens_q;         // RAGGED: int [sequences + 1], where the queries of each sequence begin, and where the last
                            // sequence's queries end
  int cu_seqlens_k;         // RAGGED: int [sequences + 1], the same for keys
  int sequences;            // RAGGED: how many sequences lie in the tensors
};

static inline const LaterModifiers& later_of(const ScoreContext& context) {
  return *static_cast<const LaterModifiers*>(context.data);
}
