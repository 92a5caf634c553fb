// The layout that the host and the cpu's chunk_h, chunk_o and fused share. This file includes only headers of kernels.
#pragma once

#include "common/attention/kernels/round_up.h"

/// The threadgroup memory that steps.h uses: offsets and size in floats. Every region starts on a cache line. A step
/// has at most `step` tokens. A vector has `lanes` elements.
struct StepsLayout {
  static constexpr long long line = 16;
  static constexpr long long tail_rows = 4;  // register tiles reach fewer than this number of rows beyond the last row

  long long dims;    // elements of a row of q and k
  long long values;  // elements of a row of v, o and state
  long long keys;    // elements of a row of scores and turned: the tokens of a step, rounded up
  // Offsets. turned: the keys of a step, transposed. prefix: the factors of a product's rows. logs: for each row of the
  // state, the logarithm of its decay.
  long long state, key_sum, q, k, turned, v, scores, o, decays, prefix, logs, floats;

  constexpr StepsLayout(long long head_dim, long long value_dim, long long step, long long lanes, bool by_channel)
      : dims(round_up(head_dim, lanes)),
        values(round_up(value_dim, lanes)),
        keys(round_up(step, lanes)),
        state(0),
        key_sum(0),
        q(0),
        k(0),
        turned(0),
        v(0),
        scores(0),
        o(0),
        decays(0),
        prefix(0),
        logs(0),
        floats(0) {
    const long long rows = keys + tail_rows;
    key_sum = state + round_up((dims + tail_rows) * values, line);
    q = key_sum + round_up(dims, line);
    k = q + round_up(rows * dims, line);
    turned = k + round_up(rows * dims, line);
    v = turned + round_up(dims * keys, line);
    scores = v + round_up(rows * values, line);
    o = scores + round_up(rows * keys, line);
    decays = o + round_up(rows * values, line);
    prefix = decays + round_up(by_channel ? rows * dims : rows, line);
    logs = prefix + round_up(dims + tail_rows + rows, line);
    floats = logs + round_up(dims, line);
  }
};
