// If the user's mask file has keys(), visible_keys() cuts the modifiers' range of keys to the range of keys().
#pragma once

#define visible_keys modified_keys
#include "common/attention/kernels/modifiers/keys.h"
#undef visible_keys
#include "proto7_variants/kernels/user_functions.h"

constexpr CONSTANT bool user_bounds = user_mask::has_bound<ScoreContext>;
#ifdef __METAL_VERSION__
constexpr constant bool modified_are_default = KEYS_ARE_DEFAULT, modified_begin_at_zero = KEYS_BEGIN_AT_ZERO;
#else
[[maybe_unused]] constexpr bool modified_are_default = KEYS_ARE_DEFAULT, modified_begin_at_zero = KEYS_BEGIN_AT_ZERO;
#endif
#undef KEYS_ARE_DEFAULT
#undef KEYS_BEGIN_AT_ZERO
#define KEYS_ARE_DEFAULT (modified_are_default && !user_bounds)
#define KEYS_BEGIN_AT_ZERO (modified_begin_at_zero && !user_bounds)

static inline KeyRange visible_keys(int q, const ScoreContext& context) {
  KeyRange keys = modified_keys(q, context);
  if constexpr (user_bounds) {
    const KeyRange bound = user_mask::bound_of(q, context);
    keys.begin = most(keys.begin, bound.begin);
    keys.end = least(keys.end, bound.end);
  }
  return keys;
}
