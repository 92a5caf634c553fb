// All works in the simplest form: no threadgroup memory, no tiles, no tensor cores. For scores and values a thread
// computes one element of the output, for the other works one row.
//
// Function constants: WORK, IN_TYPE, and HEAD_DIM and CAUSAL if the work has them. A threadgroup has 128 threads. Grid,
// rounded up: for scores and values (columns / 128, q_len, heads), for the other works (q_len / 128, heads).
//
// Checked: codegen_plain[HEAD_DIM=64,IN_TYPE=2,WORK=0] without spills
// Checked: codegen_plain[IN_TYPE=2,WORK=1] without spills
// Checked: codegen_plain[HEAD_DIM=128,IN_TYPE=0,WORK=2] without spills
// Checked: codegen_plain[CAUSAL=1,HEAD_DIM=64,IN_TYPE=2,WORK=3]
// Checked: codegen_plain[CAUSAL=0,HEAD_DIM=128,IN_TYPE=0,WORK=4]
#include "common/kernel/cuda.h"
#include "proto5_codegen/kernels/generated.h"

namespace {

constexpr int threads = 128;

DEVICE float load(const void* tensor, long long index) { return load_float<IN_TYPE>(tensor, index); }
DEVICE void store(void* tensor, long long index, float value) { store_float<IN_TYPE>(tensor, index, value); }

#if WORK_VALUE != 1  // works that have HEAD_DIM
/// Returns the scale times the product of two rows.
[[maybe_unused]] DEVICE float score(const CodegenParams& p, long long query_row, long long key_row) {
  float sum = 0;
  for (int d = 0; d < HEAD_DIM; ++d) sum += load(p.q, query_row * HEAD_DIM + d) * load(p.k, key_row * HEAD_DIM + d);
  return sum * p.scale;
}
#endif

}  // namespace

#if WORK_VALUE == 0
extern "C" __global__ void __launch_bounds__(threads) codegen_plain(const __grid_constant__ CodegenParams p) {
  static_assert(WORK == WORK_SCORES);
  const int key = blockIdx.x * threads + threadIdx.x, query = blockIdx.y;
  const long long head = blockIdx.z, row = head * p.q_len + query;
  if (key < p.kv_len) store(p.out, row * p.kv_len + key, score(p, row, head * p.kv_len + key));
}
#elif WORK_VALUE == 1
extern "C" __global__ void __launch_bounds__(threads) codegen_plain(const __grid_constant__ CodegenParams p) {
  static_assert(WORK == WORK_SOFTMAX);
  const int query = blockIdx.x * threads + threadIdx.x;
  if (query >= p.q_len) return;
  const long long row = (static_cast<long long>(blockIdx.y) * p.q_len + query) * p.kv_len;
  float maximum = -infinity(), sum = 0;
  for (int key = 0; key < p.kv_len; ++key) maximum = fmaxf(maximum, load(p.in, row + key));
  for (int key = 0; key < p.kv_len; ++key) sum += expf(load(p.in, row + key) - maximum);
  for (int key = 0; key < p.kv_len; ++key) store(p.out, row + key, expf(load(p.in, row + key) - maximum) / sum);
}
#elif WORK_VALUE == 2
extern "C" __global__ void __launch_bounds__(threads) codegen_plain(const __grid_constant__ CodegenParams p) {
  static_assert(WORK == WORK_VALUES);
  const int column = blockIdx.x * threads + threadIdx.x, query = blockIdx.y;
  if (column >= HEAD_DIM) return;
  const long long head = blockIdx.z, row = head * p.q_len + query;
  float sum = 0;
  for (int key = 0; key < p.kv_len; ++key) {
    sum += load(p.in, row * p.kv_len + key) * load(p.v, (head * p.kv_len + key) * HEAD_DIM + column);
  }
  store(p.out, row * HEAD_DIM + column, sum);
}
#else
extern "C" __global__ void __launch_bounds__(threads) codegen_plain(const __grid_constant__ CodegenParams p) {
  const int query = blockIdx.x * threads + threadIdx.x;
  if (query >= p.q_len) return;
  const long long head = blockIdx.y, row = head * p.q_len + query;
  float maximum = -infinity(), sum = 0, outputs[HEAD_DIM] = {};
  const int keys = CAUSAL ? query + 1 : p.kv_len;
  for (int key = 0; key < keys; ++key) {
    float s = score(p, row, head * p.kv_len + key);
    if (WORK == WORK_MODIFIED) s = soft_cap * tanhf(s / soft_cap) + p.slopes[head] * static_cast<float>(key - query);
    const float larger = fmaxf(maximum, s), alpha = expf(maximum - larger), weight = expf(s - larger);
    maximum = larger;
    sum = sum * alpha + weight;
    for (int d = 0; d < HEAD_DIM; ++d) {
      outputs[d] = outputs[d] * alpha + weight * load(p.v, (head * p.kv_len + key) * HEAD_DIM + d);
    }
  }
  for (int d = 0; d < HEAD_DIM; ++d) store(p.out, row * HEAD_DIM + d, outputs[d] / sum);
}
#endif
