// The layout that host and kernels of the cpu share. This file includes only headers of kernels.
#pragma once

#include "common/attention/kernels/round_up.h"

/// Threadgroup memory of steps.h: offsets and size in floats; every region starts on a cache line. A step has at most
/// `step` tokens; a vector has `lanes` elements. Register tiles may reach up to three rows beyond the last row.
struct StepsLayout {
  static constexpr long long line = 16, tail_rows = 4;

  long long dims, values, keys;  // elements of a row of: q and k; v, o and S; scores and transposed keys
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
