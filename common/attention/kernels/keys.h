// The keys hook: which keys a query row sees. This file has the rule of the constant CAUSAL; an experiment puts another
// text in its place (KernelSource::includes["common/attention/kernels/keys.h"]) for sliding windows, a length for each
// sequence, prefixes, documents ...
//
// A row sees the keys of one range. Both ends of it never decrease from a row to the next, so a kernel knows from the
// first and the last row of a tile which blocks of keys it can leave out, and which need no mask. A rule without such
// ranges is a score hook.
//
// A kernel asks for rows that exist only, and clips the range to [0, kv_len]. A row that sees no key gives 0, and
// -infinity as its log-sum-exp. A hook that defines KEYS_END_EARLY says with end_of_keys(context) where a sequence's
// own keys end, at most at kv_len. Where that is negative, a GPU's kernels make the sequence's rows NaN, as they do with
// rows that see a key on a page that there is not (is_place()).
#pragma once

#include "common/attention/kernels/attention.h"

/// False in every other hook. True: rows see the keys from 0 up to kv_len, or to causal_end with CAUSAL.
#define KEYS_ARE_DEFAULT 1
/// Whether all ranges begin at key 0; kernels then have no code for a mask there.
#define KEYS_BEGIN_AT_ZERO 1

/// q counts from the start of its sequence.
static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  return {0, CAUSAL ? causal_end(q, context.q_len, context.kv_len) : context.kv_len};
}
