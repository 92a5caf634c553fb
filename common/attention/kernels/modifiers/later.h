// The data of modifiers that came after modifiers.h: host and kernels find it after the data of all other hooks. (The
// text of modifiers.h is a part of the identity of recorded kernels, so it does not grow.)
#pragma once

#include "common/attention/kernels/modifiers/run_time.h"

struct LaterModifiers {
  RunTimeModifiers before;  // the first member: all hooks find it at the start of their data
  int starts;               // STARTS: int [batch], the first key of each sequence that is seen; an offset in bytes
};

static inline const LaterModifiers& later_of(const ScoreContext& context) {
  return *static_cast<const LaterModifiers*>(context.data);
}
