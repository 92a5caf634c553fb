// The ranges of keys.h without the padding at the start of a sequence. A table says how many keys of each sequence are
// padding.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/modifiers/later.h"

namespace and_padding {
#include "common/attention/kernels/modifiers/keys.h"
}
using and_padding::least, and_padding::most;

#undef KEYS_BEGIN_AT_ZERO
#undef KEYS_ARE_DEFAULT
#define KEYS_BEGIN_AT_ZERO 0
#define KEYS_ARE_DEFAULT 0

static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  const KeyRange keys = and_padding::visible_keys(q, context);
  const int start = table_at<int>(context, later_of(context).starts)[context.batch];
  return {most(keys.begin, start), keys.end};
}
