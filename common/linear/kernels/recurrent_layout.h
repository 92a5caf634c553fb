// The layout that host and kernel of the cpu's `recurrent` share. This file includes only headers of kernels.
#pragma once

#include "common/attention/kernels/round_up.h"

/// Threadgroup memory: offsets and size in floats. A sequence of more than `tokens` tokens is read in groups of
/// `tokens` tokens; the state stays in this memory between the groups.
struct RecurrentLayout {
  static constexpr long long line = 16;
  long long o, q, k, v, decays, divisors, key_sum, state, floats;

  constexpr RecurrentLayout(long long head_dim, long long value_dim, long long tokens)
      : o(0),
        q(o + round_up(tokens * value_dim, line)),
        k(q + round_up(tokens * head_dim, line)),
        v(k + round_up(tokens * head_dim, line)),
        decays(v + round_up(tokens * value_dim, line)),
        divisors(decays + round_up(tokens * head_dim, line)),
        key_sum(divisors + round_up(tokens, line)),
        state(key_sum + round_up(head_dim, line)),
        floats(state + round_up(head_dim * value_dim, line)) {}
};
