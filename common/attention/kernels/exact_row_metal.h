// A row of attention by its definition, in the Metal dialect, for rows that a kernel's fast code gets wrong. The code
// recognises infinities and NaNs by their bits, because Metal's default mode, fast mathematics, assumes that there are
// none.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/kernel/base2.h"
#include "common/kernel/metal.h"

/// The index of the first element of a row.
INLINE long index_of(constant TensorStrides& strides, int batch, int head, int row) {
  return batch * strides.batch + head * strides.head + row * strides.row;
}

/// The elements of a row, for rotate hooks. `first` is the index of the row's first element.
template <int TYPE>
struct RowElements {
  const device void* tensor;
  long first;
  float operator()(int d) const { return load_float<TYPE>(tensor, first + d); }
};

/// A sum of products. A product with a factor that is not finite sets a flag, and is not added to `sum`.
struct Dot {
  float sum = 0;
  bool plus = false, minus = false, nan = false;  // whether some product is +infinity, -infinity or NaN

  void add(float a, float b) {
    if (is_finite(a) && is_finite(b)) {
      sum += a * b;
    } else if (is_nan(a) || is_nan(b) || is_zero(a) || is_zero(b)) {
      nan = true;
    } else if ((as_type<uint>(a) ^ as_type<uint>(b)) >> 31) {
      minus = true;
    } else {
      plus = true;
    }
  }
  float times(float factor) const {
    if (!nan && !plus && !minus) return sum * factor;
    if (nan || (plus && minus) || factor == 0) return not_a_number();
    return as_type<float>((minus == factor < 0) ? 0x7f800000u : 0xff800000u);
  }
};

INLINE float power_of_e(float x) { return fast::exp2(x * log2_e); }

/// The state of a row's online softmax. The weight of a score s is e^(s - maximum), and `sum` is the sum of the
/// weights. `strange`: some score was NaN or +infinity, so the row is NaN.
struct Softmax {
  float maximum = lowest_score, sum = 0;
  bool strange = false;

  /// Adds a score, or the sink. A score of -infinity (a hidden pair, or no sink) changes nothing.
  void take(float s) {
    if (is_finite(s)) {
      const float larger = max(maximum, s);
      if (sum != 0) sum *= power_of_e(maximum - larger);
      sum += power_of_e(s - larger);
      maximum = larger;
    } else if (!is_minus_infinity(s)) {
      strange = true;
    }
  }
};

/// Combines the states of all lanes of a simdgroup, for every lane.
INLINE Softmax joined(Softmax own) {
  Softmax all;
  all.maximum = simd_max(own.maximum);
  all.sum = simd_sum(own.sum == 0 ? 0.0f : own.sum * power_of_e(own.maximum - all.maximum));
  all.strange = simd_max(own.strange ? 1u : 0u) != 0;
  return all;
}

/// `sum` is 0 if the row sees no key and has no sink.
INLINE void store_lse(device float* to, float maximum, float sum, bool strange) {
  if (strange) {
    *reinterpret_cast<device uint*>(to) = 0x7fc00000u;
  } else if (sum == 0) {
    *reinterpret_cast<device uint*>(to) = 0xff800000u;
  } else {
    *to = maximum + precise::log(sum);
  }
}

/// Writes a row of O, and its log-sum-exp. All lanes of a simdgroup call this function. `row` has
///   int begin, end                       the keys that the row may see
///   float score_of(int key)              -infinity: the key is hidden
///   float value_of(int key, int d)       an element of V
///   float sink()                         -infinity: there is no sink
///   void store(int d, float, bool nan), store_lse(float maximum, float sum, bool nan)
/// A lane computes HEAD_DIM / 32 columns of O, rounded up.
template <typename Row>
static NOINLINE void write_exact_row(thread const Row& row, uint lane) {
  constexpr int COLUMNS = (HEAD_DIM + SIMD - 1) / SIMD;
  Softmax own;
  if (lane == 0) own.take(row.sink());
  for (int key = row.begin + static_cast<int>(lane); key < row.end; key += SIMD) own.take(row.score_of(key));
  const Softmax all = joined(own);
  Dot o[COLUMNS];
  const float share = all.sum == 0 ? 0.0f : 1 / all.sum;
  for (int first = row.begin; first < row.end && !all.strange; first += SIMD) {
    const int key = first + static_cast<int>(lane);
    bool seen = false;
    float weight = 0;
    if (key < row.end) {
      const float s = row.score_of(key);
      seen = is_finite(s);
      if (seen) weight = power_of_e(s - all.maximum) * share;
    }
    for (int other = 0; other < SIMD && first + other < row.end; ++other) {
      const float its_weight = simd_shuffle(weight, static_cast<ushort>(other));
      if (simd_shuffle(seen ? 1u : 0u, static_cast<ushort>(other)) == 0) continue;
      for (int i = 0; i < COLUMNS; ++i) {
        const int d = static_cast<int>(lane) + i * SIMD;
        if (d < HEAD_DIM) o[i].add(its_weight, row.value_of(first + other, d));
      }
    }
  }
  for (int i = 0; i < COLUMNS; ++i) {
    const int d = static_cast<int>(lane) + i * SIMD;
    if (d < HEAD_DIM) row.store(d, o[i].times(1), all.strange);
  }
  if (lane == 0) row.store_lse(all.maximum, all.sum, all.strange);
}
