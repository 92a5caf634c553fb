// All works in the simplest form: no threadgroup memory, no tiles, no simdgroup matrices, as in the generated kernels
// of the published study (docs/study.md). For scores and values a thread computes one element of the output, for the
// other works one row. This kernel has not run on Apple hardware yet.
//
// Function constants: WORK, IN_TYPE, and HEAD_DIM and CAUSAL if the work has them. A threadgroup has 128 threads. Grid,
// rounded up: for scores and values (columns / 128, q_len, heads), for the other works (q_len / 128, heads).
//
// For an attention a thread has HEAD_DIM accumulators. From HEAD_DIM=128 on the registers do not hold them, so a
// compiler keeps them in memory.
#include "common/kernel/base2.h"
#include "common/kernel/metal.h"
#include "proto5_codegen/kernels/generated.h"

constexpr constant int THREADS = 128;

INLINE float load(const device void* tensor, long index) { return load_float<IN_TYPE>(tensor, index); }

#if WORK_VALUE != 1  // works that have HEAD_DIM
/// Returns the scale times the product of two rows.
INLINE float score(constant CodegenParams& p, long query_row, long key_row) {
  float sum = 0;
  for (int d = 0; d < HEAD_DIM; ++d) sum += load(p.q, query_row * HEAD_DIM + d) * load(p.k, key_row * HEAD_DIM + d);
  return sum * p.scale;
}
#endif

kernel void codegen_plain(constant CodegenParams& p [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                          uint thread_index [[thread_index_in_threadgroup]]) {
  const int own = static_cast<int>(group.x) * THREADS + static_cast<int>(thread_index);  // a column, or a query
#if WORK_VALUE == 0 || WORK_VALUE == 2
  const int query = static_cast<int>(group.y);
  const long head = group.z, row = head * p.q_len + query;
#if WORK_VALUE == 0
  static_assert(WORK == WORK_SCORES, "work");
  if (own < p.kv_len) store_float<IN_TYPE>(p.out, row * p.kv_len + own, score(p, row, head * p.kv_len + own));
#else
  static_assert(WORK == WORK_VALUES, "work");
  if (own >= HEAD_DIM) return;
  float sum = 0;
  for (int key = 0; key < p.kv_len; ++key) {
    sum += load(p.in, row * p.kv_len + key) * load(p.v, (head * p.kv_len + key) * HEAD_DIM + own);
  }
  store_float<IN_TYPE>(p.out, row * HEAD_DIM + own, sum);
#endif
#else
  if (own >= p.q_len) return;
  const long head = group.y, row = head * p.q_len + own;
  float maximum = lowest_score, sum = 0;
#if WORK_VALUE == 1
  static_assert(WORK == WORK_SOFTMAX, "work");
  const long first = row * p.kv_len;
  for (int key = 0; key < p.kv_len; ++key) maximum = max(maximum, load(p.in, first + key));
  for (int key = 0; key < p.kv_len; ++key) sum += exp(load(p.in, first + key) - maximum);
  for (int key = 0; key < p.kv_len; ++key) {
    store_float<IN_TYPE>(p.out, first + key, exp(load(p.in, first + key) - maximum) / sum);
  }
#else
  float outputs[HEAD_DIM];
  for (int d = 0; d < HEAD_DIM; ++d) outputs[d] = 0;
  const int keys = CAUSAL ? own + 1 : p.kv_len;
  for (int key = 0; key < keys; ++key) {
    float s = score(p, row, head * p.kv_len + key);
    if (WORK == WORK_MODIFIED)
      s = soft_cap * precise::tanh(s / soft_cap) + p.slopes[head] * static_cast<float>(key - own);
    const float larger = max(maximum, s), alpha = exp(maximum - larger), weight = exp(s - larger);
    maximum = larger;
    sum = sum * alpha + weight;
    for (int d = 0; d < HEAD_DIM; ++d) {
      outputs[d] = outputs[d] * alpha + weight * load(p.v, (head * p.kv_len + key) * HEAD_DIM + d);
    }
  }
  for (int d = 0; d < HEAD_DIM; ++d) store_float<IN_TYPE>(p.out, row * HEAD_DIM + d, outputs[d] / sum);
#endif
#endif
}
