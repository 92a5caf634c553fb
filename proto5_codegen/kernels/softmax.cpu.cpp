// P = softmax(S) of each row, written by hand: the maximum, then weights and their sum, then the division. A row stays
// in the caches between these three passes. One threadgroup computes BLOCK_R rows.
//
// Grid: (row tiles, heads). Function constants: BLOCK_R, VECTOR_WIDTH, AT_ONCE (the number of vectors that a loop works
// on at a time).
#include "common/attention/kernels/softmax.h"

#include "common/attention/kernels/attention.h"
#include "common/kernel/cpu.h"
#include "proto5_codegen/kernels/generated.h"

namespace {

using Floats = Vector<float, VECTOR_WIDTH>;
constexpr int STEP = AT_ONCE * VECTOR_WIDTH;

INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }
INLINE Floats added(Floats a, Floats b) { return a + b; }

/// Combines all lanes of all vectors into one number.
template <typename Combine>
INLINE float reduced(const Floats (&parts)[AT_ONCE], Combine combine) {
  Floats all = parts[0];
  UNROLL for (int i = 1; i < AT_ONCE; ++i) all = combine(all, parts[i]);
  float one = all[0];
  for (int lane = 1; lane < VECTOR_WIDTH; ++lane) one = combine(Floats{} + one, Floats{} + all[lane])[0];
  return one;
}

INLINE void softmax_row(const float* in, float* out, int keys) {
  const int whole = keys / STEP * STEP;
  Floats maxima[AT_ONCE], sums[AT_ONCE] = {};
  UNROLL for (int i = 0; i < AT_ONCE; ++i) maxima[i] = Floats{} + in[0];
  for (int key = 0; key < whole; key += STEP) {
    UNROLL for (int i = 0; i < AT_ONCE; ++i) {
      maxima[i] = larger(maxima[i], load<Floats>(in + key + i * VECTOR_WIDTH));
    }
  }
  float maximum = reduced(maxima, larger);
  for (int key = whole; key < keys; ++key) maximum = in[key] > maximum ? in[key] : maximum;

  for (int key = 0; key < whole; key += STEP) {
    UNROLL for (int i = 0; i < AT_ONCE; ++i) {
      const Floats weight = exp4((load<Floats>(in + key + i * VECTOR_WIDTH) - maximum) * log4_e);
      sums[i] += weight;
      store(out + key + i * VECTOR_WIDTH, weight);
    }
  }
  float sum = reduced(sums, added);
  for (int key = whole; key < keys; ++key) {
    out[key] = exp4(Vector<float, 4>{} + (in[key] - maximum) * log4_e)[0];
    sum += out[key];
  }
  const float inverse = 1 / sum;
  for (int key = 0; key < whole; key += STEP) {
    UNROLL for (int i = 0; i < AT_ONCE; ++i) {
      float* const at = out + key + i * VECTOR_WIDTH;
      store(at, load<Floats>(at) * inverse);
    }
  }
  for (int key = whole; key < keys; ++key) out[key] *= inverse;
}

}  // namespace

extern "C" void codegen_softmax(const CodegenParams* params, const Threadgroup* group) {
  const CodegenParams& p = *params;
  const int first = static_cast<int>(group->index[0]) * BLOCK_R;
  for (int row = first; row < first + BLOCK_R && row < p.q_len; ++row) {
    const long at = (static_cast<long>(group->index[1]) * p.q_len + row) * p.kv_len;
    softmax_row(static_cast<const float*>(p.in) + at, static_cast<float*>(p.out) + at, p.kv_len);
  }
}
