// Joins two results by their log-sum-exps. merge.h describes the parameters.
//
// Function constants: HEAD_DIM, OUT_TYPE, VECTOR_WIDTH. Grid: (heads, batch).
#include "common/paged/kernels/merge.h"

#include "common/attention/kernels/softmax.h"

namespace {

constexpr int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }
constexpr int LANES = gcd(HEAD_DIM, VECTOR_WIDTH);
using Floats = Vector<float, LANES>;
using Pair = Vector<float, 2>;

}  // namespace

extern "C" void merge(const MergeParams* params, const Threadgroup* group) {
  const MergeParams& p = *params;
  const int head = static_cast<int>(group->index[0]), batch = static_cast<int>(group->index[1]);
  const long long prefix = static_cast<long long>(head) * p.batch + batch;
  const long long own = static_cast<long long>(batch) * p.heads + head;
  const float prefix_lse = p.prefix_lse[prefix], own_lse = p.own_lse[own];
  const float most = prefix_lse > own_lse ? prefix_lse : own_lse, shift = shift_of(most);
  Pair weights = exp4(Pair{prefix_lse - shift, own_lse - shift} * log4_e);
  const float sum = weights[0] + weights[1];
  weights *= sum != 0 ? 1 / sum : 0;
  const long long at = batch * p.o_strides.batch + head * p.o_strides.head;
  for (int d = 0; d < HEAD_DIM; d += LANES) {
    const Floats a = load<Floats>(p.prefix_o + prefix * HEAD_DIM + d), b = load<Floats>(p.own_o + own * HEAD_DIM + d);
    store_floats<OUT_TYPE, LANES>(p.o, at + d, a * weights[0] + b * weights[1]);
  }
  if (p.lse) p.lse[own] = sum != 0 ? most + ln_2 * __builtin_log2f(sum) : hidden_score;
}
