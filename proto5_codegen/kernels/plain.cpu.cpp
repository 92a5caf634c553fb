// All works as plain loops, which clang vectorises: no vector types, no tiles, no packing. The source only allows sums
// in any order, and marks the loops to vectorise with VECTORIZE. One threadgroup computes one row of one head.
//
// Threadgroup memory: weights [kv_len], in floats, for the works `attention` and `modified`. Grid: (q_len, heads).
// Function constants: WORK, and HEAD_DIM and CAUSAL if the work has them.
#include "common/kernel/cpu.h"
#include "proto5_codegen/kernels/generated.h"

#pragma clang fp reassociate(on)

namespace plain {
#include "common/kernel/math.h"
}

namespace {

struct Row {
  const CodegenParams& p;
  long head, row;  // row: the query's row, counted over all heads
  int query;

  INLINE const float* of(const void* tensor, int columns) const {
    return static_cast<const float*>(tensor) + row * columns;
  }
  INLINE const float* head_of(const void* tensor, int columns) const {
    return static_cast<const float*>(tensor) + head * p.kv_len * columns;
  }
  INLINE float* out(int columns) const { return static_cast<float*>(p.out) + row * columns; }
};

#if WORK_VALUE != 1  // works that have HEAD_DIM
/// Writes the row's scores with the first `keys` keys to `to`.
[[maybe_unused]] INLINE void scores(const Row& at, float* to, int keys) {
  const float *const q = at.of(at.p.q, HEAD_DIM), *const k = at.head_of(at.p.k, HEAD_DIM);
  for (int key = 0; key < keys; ++key) {
    float sum = 0;
    VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) sum += q[d] * k[static_cast<long>(key) * HEAD_DIM + d];
    to[key] = sum * at.p.scale;
  }
}

/// Writes the row's output: the product of the weights and the values of the first `keys` keys.
[[maybe_unused]] INLINE void values(const Row& at, const float* weights, int keys) {
  const float* const v = at.head_of(at.p.v, HEAD_DIM);
  float sums[HEAD_DIM] = {};
  for (int key = 0; key < keys; ++key) {
    VECTORIZE for (int d = 0; d < HEAD_DIM; ++d) sums[d] += weights[key] * v[static_cast<long>(key) * HEAD_DIM + d];
  }
  float* const out = at.out(HEAD_DIM);
  for (int d = 0; d < HEAD_DIM; ++d) out[d] = sums[d];
}

[[maybe_unused]] INLINE void modify(const Row& at, float* scores, int keys) {
  const float slope = at.p.slopes[at.head];
  VECTORIZE for (int key = 0; key < keys; ++key) {
    scores[key] = soft_cap * plain::tanhf(scores[key] * (1.0f / soft_cap)) + slope * static_cast<float>(key - at.query);
  }
}
#endif

[[maybe_unused]] INLINE void softmax(const float* in, float* out, int keys) {
  float maximum = in[0], sum = 0;
  VECTORIZE for (int key = 0; key < keys; ++key) maximum = in[key] > maximum ? in[key] : maximum;
  VECTORIZE for (int key = 0; key < keys; ++key) {
    out[key] = plain::expf(in[key] - maximum);
    sum += out[key];
  }
  const float inverse = 1 / sum;
  VECTORIZE for (int key = 0; key < keys; ++key) out[key] *= inverse;
}

}  // namespace

extern "C" void codegen_plain(const CodegenParams* params, const Threadgroup* group) {
  const int query = static_cast<int>(group->index[0]);
  const long head = group->index[1];
  const Row at{*params, head, head * params->q_len + query, query};
#if WORK_VALUE == 0
  static_assert(WORK == WORK_SCORES);
  scores(at, at.out(params->kv_len), params->kv_len);
#elif WORK_VALUE == 1
  static_assert(WORK == WORK_SOFTMAX);
  softmax(at.of(params->in, params->kv_len), at.out(params->kv_len), params->kv_len);
#elif WORK_VALUE == 2
  static_assert(WORK == WORK_VALUES);
  values(at, at.of(params->in, params->kv_len), params->kv_len);
#else
  const int keys = CAUSAL ? query + 1 : params->kv_len;
  float* const weights = reinterpret_cast<float*>(group->memory);
  scores(at, weights, keys);
  if (WORK == WORK_MODIFIED) modify(at, weights, keys);
  softmax(weights, weights, keys);
  values(at, weights, keys);
#endif
}
