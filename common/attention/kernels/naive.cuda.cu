// Variant `naive`: naive.cpu.cpp in the CUDA dialect. Each thread computes scores of some keys, then columns of O.
//
// Function constants: HEAD_DIM (at most 256), CAUSAL, IN_TYPE, OUT_TYPE.
// Threadgroup memory: scores [kv_len], in floats. Grid: (q_len, q_heads, batch); naive_threads threads.
//
// Checked: flash_forward[CAUSAL=0,HEAD_DIM=64,IN_TYPE=0,OUT_TYPE=0] without spills
// Checked: flash_forward[CAUSAL=1,HEAD_DIM=256,IN_TYPE=1,OUT_TYPE=2] without spills
// Checked: flash_forward[CAUSAL=1,HEAD_DIM=128,IN_TYPE=2,OUT_TYPE=1] without spills
#include "common/attention/kernels/attention.h"
#include "common/attention/kernels/keys.h"
#include "common/attention/kernels/mask.h"
#include "common/attention/kernels/naive.h"
#include "common/attention/kernels/pages.h"
#include "common/attention/kernels/rotate.h"
#include "common/attention/kernels/score.h"
#include "common/attention/kernels/sink.h"
#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"

#ifndef KEYS_END_EARLY
#define KEYS_END_EARLY 0
#define end_of_keys(context) 0
#endif

namespace {

constexpr int THREADS = naive_threads;
// Whether a row may begin with a weight: the weight of its sink, or NaN for a sequence whose length is wrong.
constexpr bool HAS_SINK = !SINK_IS_NONE || KEYS_END_EARLY;

extern __shared__ float scores[];

// Combines the values of all threads of the threadgroup.
template <typename Combine>
DEVICE float reduce(float value, Combine combine) {
  __shared__ float values[THREADS];
  values[threadIdx.x] = value;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + half]);
    __syncthreads();
  }
  value = values[0];
  __syncthreads();  // the next call writes values[]
  return value;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) flash_forward(const __grid_constant__ AttentionParams p) {
  const int query = blockIdx.x;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int thread = threadIdx.x;
  const int kv_head = head / (p.q_heads / p.kv_heads);
  const long long q = batch * p.q_strides.batch + head * p.q_strides.head + query * p.q_strides.row;
  const long long k = batch * p.k_strides.batch + kv_head * p.k_strides.head;
  const long long v = batch * p.v_strides.batch + kv_head * p.v_strides.head;
  const long long o = batch * p.o_strides.batch + head * p.o_strides.head + query * p.o_strides.row;

  (void)CAUSAL;  // counts as a use of CAUSAL; a keys hook need not use CAUSAL
  const ScoreContext context{batch, head, p.q_heads, p.q_len, p.kv_len, p.score_data};
  const KeyRange visible = visible_keys(query, context);
  const int keys = max(0, min(visible.end, p.kv_len));
  const int first_key = KEYS_BEGIN_AT_ZERO ? 0 : max(0, visible.begin);
  // Returns the index of the first element of a key's row. `of_head` is the index of the head's first element.
  const auto row_of = [&](const TensorStrides& strides, long long of_head, int key) {
    return PAGES_ARE_DEFAULT ? of_head + key * strides.row : index_of(strides, place_of_key(key, kv_head, context));
  };
  const auto load_q = [&](int d) { return load_float<IN_TYPE>(p.q, q + d); };
  const bool lost = KEYS_END_EARLY && end_of_keys(context) < 0;
  const float sink = lost ? not_a_number() : SINK_IS_NONE ? -infinity() : sink_logit(context);
  float maximum = fmaxf(sink, lowest_score);
  for (int key = first_key + thread; key < keys; key += THREADS) {
    if (!PAGES_ARE_DEFAULT && !is_place(p, place_of_key(key, kv_head, context))) {
      scores[key] = MASK_IS_NONE || ::visible(query, key, context) ? not_a_number() : -infinity();
      continue;
    }
    const auto load_k = [&](int d) { return load_float<IN_TYPE>(p.k, row_of(p.k_strides, k, key) + d); };
    float dot = 0;
    for (int d = 0; d < HEAD_DIM; ++d) {
      dot += rotate_query(load_q, query, d, context) * rotate_key(load_k, key, d, context);
    }
    scores[key] = score(p.scale * dot, query, key, context);
    if (!MASK_IS_NONE && !::visible(query, key, context)) scores[key] = -infinity();
    maximum = fmaxf(maximum, scores[key]);
  }
  maximum = reduce(maximum, [](float a, float b) { return fmaxf(a, b); });
  float sum = HAS_SINK && thread == 0 ? expf(sink - maximum) : 0;
  for (int key = first_key + thread; key < keys; key += THREADS) {
    // The score of a hidden pair stays -infinity, so that the key's row of V does not count, even if it is not finite.
    if (scores[key] == -infinity()) continue;
    scores[key] = expf(scores[key] - maximum);
    sum += scores[key];
  }
  sum = reduce(sum, [](float a, float b) { return a + b; });
  const float share = sum == 0 ? 0 : 1 / sum;
  for (int d = thread; d < HEAD_DIM; d += THREADS) {
    float output = 0;
    for (int key = first_key; key < keys && (PAGES_ARE_DEFAULT || share == share); ++key) {
      if (scores[key] == -infinity()) continue;
      output += share * scores[key] * load_float<IN_TYPE>(p.v, row_of(p.v_strides, v, key) + d);
    }
    store_float<OUT_TYPE>(p.o, o + d, share == share ? output : share);  // a NaN may come from the sink alone
  }
  if (p.lse && thread == 0) {
    const long long row = (static_cast<long long>(batch) * p.q_heads + head) * p.q_len + query;
    p.lse[row] = sum == 0 ? -infinity() : maximum + logf(sum);
  }
}
