// The end of a row of O: its sums over all keys, joined from parts, and its scale.
#pragma once

#include "common/paged/kernels/decode/schedule.h"

namespace {

/// Returns the factor by which a row's sum of weighted V is multiplied once all keys are added up. If `writes`, writes
/// the row's log-sum-exp to memory.
DEVICE float finish_row(const DecodeParams& p, const Line& line, const Place& place, const Row& row, float shift,
                        float sum, bool writes) {
  float factor = 1;
  if constexpr (!SINK_IS_NONE) {
    const float sink = (FOLD ? log2_e : 1) * sink_logit(line.context_of(place.batch, row.head, place.keys));
    const float larger = fmaxf(shift, sink);
    factor = power(shift - larger);
    sum = sum * factor + power(sink - larger);
    shift = larger;
  }
  if (place.keys < 0) sum = not_a_number();
  // If scale * log2(e) is above 1, a finite product of Q and K may become -infinity when it is multiplied by this
  // number. So if all weights are 0, a sum of NaN makes the caller compute the row anew.
  if (FOLD && sum == 0 && p.scale > ln_2) sum = not_a_number();
  if (writes && p.lse != nullptr) {
    const long long at = (static_cast<long long>(place.batch) * p.q_heads + row.head) * p.q_len + row.query;
    p.lse[at] = sum == 0 ? -infinity() : (FOLD ? shift * ln_2 : shift) + __logf(sum);
  }
  return sum == 0 ? 0 : factor / sum;
}

DEVICE long long output_at(const DecodeParams& p, const Place& place, const Row& row) {
  return place.batch * p.o_strides.batch + row.head * p.o_strides.head + row.query * p.o_strides.row;
}

/// Some parts of a row, joined: four columns of the sum of weighted V, the sum of the weights, and the shift of both
/// sums.
struct Joined {
  float shift = lowest_score, sum = 0, o[4] = {};

  // Makes `larger`, which is not below the shift, the shift.
  DEVICE void raise(float larger) {
    const float old = power(shift - larger);
    shift = larger;
    sum *= old;
    UNROLL for (int i = 0; i < 4; ++i) o[i] *= old;
  }
  // Adds a part that has been multiplied by nothing yet; `factor`: power(its shift - shift).
  DEVICE void add(float factor, float its_sum, const float4& its_o) {
    sum += its_sum * factor;
    o[0] += its_o.x * factor;
    o[1] += its_o.y * factor;
    o[2] += its_o.z * factor;
    o[3] += its_o.w * factor;
  }
};

}  // namespace
