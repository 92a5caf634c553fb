// RoPE within the attention kernel: rotates Q, and with ROTATE_KEYS also K, by the angles of their positions. The last
// query has the position of the last key. Constants: ROTATE_KEYS, and the constants of turned.h.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/modifiers/modifiers.h"
#include "common/attention/kernels/modifiers/turned.h"

#define ROTATE_IS_IDENTITY 0
#define ROTATE_LEAVES_KEYS (ROTATE_KEYS == 0)

template <typename Load>
static inline auto turned(Load load, int key, int d, const ScoreContext& context) {
  const GLOBAL ModifierData& data = modifiers_of(context);
  const GLOBAL char* const tables = static_cast<const GLOBAL char*>(context.data);
  return turned(load, key, d, AngleTable{tables, data.cosines}, AngleTable{tables, data.sines});
}

template <typename Load>
static inline auto rotate_query(Load load, int q, int d, const ScoreContext& context) {
  return turned(load, q + context.kv_len - context.q_len, d, context);
}
template <typename Load>
static inline auto rotate_key(Load load, int key, int d, const ScoreContext& context) {
  if constexpr (ROTATE_LEAVES_KEYS) {
    return load(d);
  } else {
    return turned(load, key, d, context);
  }
}
