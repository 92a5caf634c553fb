// The keys hook says which range of keys a query row sees. This file has the rule of the constant CAUSAL. An experiment
// replaces this file by another text (KernelSource::includes["common/attention/kernels/keys.h"]), for example by
// modifiers/keys.h.
//
// Neither end of the range decreases from a row to the next. So the first and the last row of a tile tell a kernel
// which blocks of keys it can leave out, and which blocks need no mask. Rules without such ranges belong in a mask hook
// or a score hook.
//
// Kernels clip the range to [0, kv_len]. The range may be empty (attention.h defines the results of a row without
// keys). If the hook sets KEYS_ARE_DEFAULT to 0, kernels call visible_keys() only for rows that exist.
//
// The sequences of a batch may have fewer keys than kv_len. For such a batch a hook also defines KEYS_END_EARLY as 1,
// and the function end_of_keys(context), which returns the number of keys of a sequence. The function returns a
// negative number if the sequence's length in the caller's table is not allowed. Then kernels of a GPU make the rows of
// the sequence NaN. They also make a row NaN if it sees a key on a page that does not exist (is_place()).
#pragma once

#include "common/attention/kernels/attention.h"

// Every keys hook defines the next two macros, as 0 or 1.
/// Whether rows see the keys from 0 up to kv_len or, with CAUSAL, up to causal_end().
#define KEYS_ARE_DEFAULT 1
/// Whether all ranges begin at key 0. If so, kernels have no code that masks the keys before a range.
#define KEYS_BEGIN_AT_ZERO 1

/// q counts from the start of its sequence.
static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  return {0, CAUSAL ? causal_end(q, context.q_len, context.kv_len) : context.kv_len};
}
