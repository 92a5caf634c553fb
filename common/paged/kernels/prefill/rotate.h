// Rotates queries by their positions in their sequence. before.h rotates the keys before it writes them to the cache.
#pragma once

#include "common/attention/kernels/modifiers/turned.h"
#include "common/paged/kernels/prefill/prefill.h"

#define ROTATE_IS_IDENTITY 0
#define ROTATE_LEAVES_KEYS 1

template <typename Load>
static inline auto rotate_query(Load load, int q, int d, const ScoreContext& context) {
  const PrefillData& data = prefill_of(context);
  const int key = q + length_of(data, context.batch, context.kv_len) - context.q_len;
  const auto table = [](const float* angles) { return AngleTable{reinterpret_cast<const char*>(angles), 0}; };
  // A query before the sequence's first key sees no key, so any angle will do.
  return turned(load, key < 0 ? 0 : key, d, table(data.tokens.cosines), table(data.tokens.sines));
}
template <typename Load>
static inline auto rotate_key(Load load, int /*key*/, int d, const ScoreContext& /*context*/) {
  return load(d);
}
