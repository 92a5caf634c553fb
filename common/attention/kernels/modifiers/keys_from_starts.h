// The ranges of keys.h, each without the keys before the first key of its sequence. A table has these first keys. The
// keys before them are padding.
#pragma once

// A header that includes this one may have given visible_keys another name.
#pragma push_macro("visible_keys")
#undef visible_keys
#define visible_keys visible_keys_and_padding
#include "common/attention/kernels/modifiers/keys.h"
#undef visible_keys
#pragma pop_macro("visible_keys")
#include "common/attention/kernels/modifiers/later.h"

#undef KEYS_BEGIN_AT_ZERO
#undef KEYS_ARE_DEFAULT
#define KEYS_BEGIN_AT_ZERO 0
#define KEYS_ARE_DEFAULT 0

static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  const KeyRange keys = visible_keys_and_padding(q, context);
  return {most(keys.begin, table_at<int>(context, later_of(context).starts)[context.batch]), keys.end};
}
