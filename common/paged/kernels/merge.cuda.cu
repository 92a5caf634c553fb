// Joins two results by their log-sum-exps. merge.h describes the parameters.
//
// Function constants: HEAD_DIM (a multiple of 4), OUT_TYPE. Grid: (heads, batch). A threadgroup has HEAD_DIM / 4
// threads.
//
// Checked: merge[HEAD_DIM=128,OUT_TYPE=2] without spills
#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"
#include "common/paged/kernels/merge.h"

extern "C" __global__ void merge(const __grid_constant__ MergeParams p) {
  const int head = blockIdx.x, batch = blockIdx.y;
  const long long prefix = static_cast<long long>(head) * p.batch + batch;
  const long long own = static_cast<long long>(batch) * p.heads + head;
  const float prefix_lse = log2_e * p.prefix_lse[prefix], own_lse = log2_e * p.own_lse[own];
  const float larger = fmaxf(fmaxf(prefix_lse, own_lse), lowest_score);
  const float of_prefix = exp2_approx(prefix_lse - larger), of_own = exp2_approx(own_lse - larger);
  const float sum = of_prefix + of_own, share = sum == 0 ? 0 : 1 / sum;
  const float4 a = reinterpret_cast<const float4*>(p.prefix_o + prefix * HEAD_DIM)[threadIdx.x];
  const float4 b = reinterpret_cast<const float4*>(p.own_o + own * HEAD_DIM)[threadIdx.x];
  const float o[4] = {a.x * of_prefix + b.x * of_own, a.y * of_prefix + b.y * of_own, a.z * of_prefix + b.z * of_own,
                      a.w * of_prefix + b.w * of_own};
  const long long at = batch * p.o_strides.batch + head * p.o_strides.head + 4 * threadIdx.x;
  UNROLL for (int i = 0; i < 4; ++i) store_float<OUT_TYPE>(p.o, at + i, o[i] * share);
  if (threadIdx.x == 0 && p.lse != nullptr) p.lse[own] = sum == 0 ? -infinity() : ln_2 * (larger + __log2f(sum));
}
