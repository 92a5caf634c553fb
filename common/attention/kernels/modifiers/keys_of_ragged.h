// The keys that a query sees if several sequences lie one after the other in one tensor. A query sees only keys of its
// own sequence, and only keys that all rules below allow. A query's own key is as far from the sequence's last key as
// the query is from the sequence's last query. Rows after the last sequence see nothing.
//   RAGGED         1: all keys; 2: the keys up to its own key. The kernel has CAUSAL=0 in both cases
//   PREFIX         the keys up to its own key, and the first PREFIX keys of its sequence; with RAGGED=1
//   WINDOW_LEFT, WINDOW_RIGHT   as in keys.h
//
// Queries and keys have the same order of sequences, so neither end of the range decreases from a row to the next.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/modifiers/modifiers.h"

#define KEYS_BEGIN_AT_ZERO 0
#define KEYS_ARE_DEFAULT 0
static_assert(!CAUSAL && DOCUMENTS == 0 && LENGTHS == 0 && STARTS == 0 && !WINDOW_BY_MASK);

static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  const GLOBAL ModifierData& data = modifiers_of(context);
  const GLOBAL int* const queries = table_at<int>(context, data.cu_seqlens_q);
  // Finds the last sequence that begins at the query or before it. If several sequences begin there, only the last has
  // queries.
  int sequence = 0, beyond = data.sequences;
  while (beyond - sequence > 1) {
    const int middle = (sequence + beyond) / 2;
    (queries[middle] <= q ? sequence : beyond) = middle;
  }
  const GLOBAL int* const keys = table_at<int>(context, data.cu_seqlens_k) + sequence;
  const int first = keys[0], last = keys[1], own = q + last - queries[sequence + 1];
  if (own >= last) return {last, last};
  KeyRange seen{first, last};
  if constexpr (RAGGED == 2) seen.end = least(seen.end, own + 1);
  if constexpr (PREFIX != 0) seen.end = least(seen.end, most(own + 1, first + static_cast<int>(PREFIX)));
  if constexpr (WINDOW_LEFT >= 0) seen.begin = most(seen.begin, own - static_cast<int>(WINDOW_LEFT));
  if constexpr (WINDOW_RIGHT >= 0) seen.end = least(seen.end, own + static_cast<int>(WINDOW_RIGHT) + 1);
  return {seen.begin, most(seen.end, first)};
}
