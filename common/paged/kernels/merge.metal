// Joins two results by their log-sum-exps. merge.h describes the parameters. Not run on Apple hardware yet.
//
// Function constants: HEAD_DIM (a multiple of 4), OUT_TYPE. Grid: (heads, batch). A threadgroup has HEAD_DIM / 4
// threads.
#include "common/kernel/base2.h"
#include "common/kernel/metal.h"
#include "common/paged/kernels/merge.h"

kernel void merge(constant MergeParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]]) {
  const int head = static_cast<int>(group.x), batch = static_cast<int>(group.y);
  const long prefix = static_cast<long>(head) * p.batch + batch, own = static_cast<long>(batch) * p.heads + head;
  const float prefix_lse = p.prefix_lse[prefix], own_lse = p.own_lse[own];
  const bool strange = (!is_finite(prefix_lse) && !is_minus_infinity(prefix_lse)) ||
                       (!is_finite(own_lse) && !is_minus_infinity(own_lse));
  // A result over no keys has no weight.
  const float of_prefix = is_finite(prefix_lse) ? prefix_lse : lowest_score;
  const float of_own = is_finite(own_lse) ? own_lse : lowest_score, larger = max(of_prefix, of_own);
  const float prefix_weight = is_finite(prefix_lse) ? fast::exp2((of_prefix - larger) * log2_e) : 0.0f;
  const float own_weight = is_finite(own_lse) ? fast::exp2((of_own - larger) * log2_e) : 0.0f;
  const float sum = prefix_weight + own_weight, share = sum == 0 ? 0.0f : 1 / sum;
  const long at = batch * p.o_strides.batch + head * p.o_strides.head;
  for (int i = 0; i < 4; ++i) {
    const int d = static_cast<int>(thread_index) * 4 + i;
    if (strange) {
      store_nan<OUT_TYPE>(p.o, at + d);
      continue;
    }
    float value = 0;
    if (prefix_weight != 0) value += p.prefix_o[prefix * HEAD_DIM + d] * prefix_weight;
    if (own_weight != 0) value += p.own_o[own * HEAD_DIM + d] * own_weight;
    store_float<OUT_TYPE>(p.o, at + d, value * share);
  }
  if (thread_index != 0 || p.lse == nullptr) return;
  device uint* const lse = reinterpret_cast<device uint*>(p.lse) + own;
  *lse = strange ? 0x7fc00000u : sum == 0 ? 0xff800000u : as_type<uint>(larger + precise::log(sum));
}
