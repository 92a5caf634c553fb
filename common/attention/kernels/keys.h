// The keys hook says which range of keys a query row sees. This file has the rule of the constant CAUSAL. An experiment
// replaces this file by another text (KernelSource::includes["common/attention/kernels/keys.h"]). modifiers/keys.h is
// the text for sliding windows, a length for each sequence, prefixes and documents.
//
// A row sees the keys of one range. Neither end of the range decreases from a row to the next. So the first and the
// last row of a tile tell a kernel which blocks of keys the kernel can leave out, and which blocks need no mask. A rule
// without such ranges needs a mask hook or a score hook.
//
// Unless KEYS_ARE_DEFAULT, a kernel asks only for rows that exist. The kernel clips the range to [0, kv_len]. The range
// may be empty (attention.h says what the results of a row without keys are).
//
// A hook may also define KEYS_END_EARLY as 1, and the function end_of_keys(context). This function returns where the
// sequence's own keys end, at most kv_len. If the result is negative, the kernels of a GPU make the rows of the
// sequence NaN. These kernels also make a row NaN if the row sees a key on a page that does not exist (is_place()).
#pragma once

#include "common/attention/kernels/attention.h"

/// Whether rows see the keys from 0 up to kv_len or, with CAUSAL, up to causal_end(). Every keys hook defines this
/// macro.
#define KEYS_ARE_DEFAULT 1
/// Whether all ranges begin at key 0. If so, kernels have no code that masks the keys before a range.
#define KEYS_BEGIN_AT_ZERO 1

/// q counts from the start of its sequence.
static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  return {0, CAUSAL ? causal_end(q, context.q_len, context.kv_len) : context.kv_len};
}
