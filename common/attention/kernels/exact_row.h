// A row of attention by its definition, for CUDA kernels, whose fast code gets some rows wrong:
//   - Products of whole blocks multiply hidden values by weights of 0, and 0 times infinity is NaN.
//   - Kernels of f32 split each number into the sum of two numbers of tf32. For an infinity this sum is NaN.
//   - The exponent of a weight, s * factor - shift in base 2, is computed with one rounding. But the shift, which is
//     near the row's largest s * factor, has been rounded before. Beyond 2^26 the error of the shift is too large.
// A kernel finds such a row by a result that is not finite, or by a shift that is too large. The code here then
// computes the row anew, key by key, and reads no value of a hidden key.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"

/// If the absolute value of a row's shift, in base 2, is below this limit, a kernel may scale a score and subtract the
/// shift with one rounding.
constexpr float most_folded_shift = 67108864.0f;

/// Returns false if a row must be computed anew because of its shift, which is in base 2. `total` is the sum of the
/// row's weights. A shift of lowest_score with a sum of 0 has two possible reasons. Either the row has seen no key, and
/// is right. Or the multiplication by scale_log2, the scale times log2(e), has turned all finite scores of the row into
/// -infinity. This needs a scale_log2 above 1, so the function then returns false.
DEVICE bool shift_is_exact(float shift, float total, float scale_log2) {
  if (total == 0 && shift == lowest_score) return !(scale_log2 > 1);
  return fabsf(shift) < most_folded_shift;
}

/// Returns the first sum of weights of a row whose first shift is its sink: 0 if there is no sink, NaN if the sink is
/// +infinity or NaN, and else 1. NaN makes the row NaN.
DEVICE float first_weight(float sink) { return sink == -infinity() ? 0 : 1 + 0 * sink; }

DEVICE float largest_of_warp(float x) {
  UNROLL for (int step = WARP / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
DEVICE float sum_of_warp(float x) {
  UNROLL for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

/// Writes a row of O, and the row's log-sum-exp. All lanes of a warp call this function. Each lane computes the score
/// of one of 32 keys, and every 32nd column of O. `row` has
///   KeyRange keys                        the keys that the row may see
///   float score_of(int key)              -infinity: the key is hidden
///   float value_of(int key, int d)       an element of V
///   float sink()                         -infinity: there is no sink
///   void store(int d, float), store_lse(float)
template <typename Row>
DEVICE void write_exact_row(const Row& row) {
  constexpr int COLUMNS = (HEAD_DIM + WARP - 1) / WARP;
  const int lane = threadIdx.x % WARP;
  // This code divides nothing and calls only functions that are inlined (hooks may differ). With a division or a call,
  // ptxas would do all products of `wgmma` one after the other (message C7520).
  const auto power_of_e = [](float x) { return exp2_approx(x * log2_e); };
  const float sink = row.sink();
  float maximum = fmaxf(sink, lowest_score), sum = sink < lowest_score ? 0 : power_of_e(sink - maximum);
  double o[COLUMNS] = {};  // in double, because a sum of large values can overflow f32
#pragma unroll 1
  for (int first = row.keys.begin; first < row.keys.end && sum == sum; first += WARP) {  // a sum of NaN stays NaN
    const int key = first + lane;
    const float s = key < row.keys.end ? row.score_of(key) : -infinity();
    __syncwarp();
    const bool seen = !(s == -infinity());
    const float larger = fmaxf(maximum, largest_of_warp(s)), alpha = power_of_e(maximum - larger);
    const float weight = seen ? power_of_e(s - larger) : 0;
    maximum = larger;
    sum = sum * alpha + sum_of_warp(weight);
    UNROLL for (int i = 0; i < COLUMNS; ++i) o[i] *= alpha;
#pragma unroll 1
    for (unsigned lanes = __ballot_sync(~0u, seen); lanes != 0; lanes &= lanes - 1) {
      const int other = __ffs(lanes) - 1;
      const float its_weight = __shfl_sync(~0u, weight, other);
      UNROLL for (int i = 0; i < COLUMNS; ++i) {
        const int d = lane + i * WARP;
        if (d < HEAD_DIM) o[i] += static_cast<double>(its_weight) * row.value_of(first + other, d);
      }
    }
  }
  const float inverse = sum == 0 ? 0 : reciprocal_approx(sum);
  UNROLL for (int i = 0; i < COLUMNS; ++i) {
    const int d = lane + i * WARP;
    if (d < HEAD_DIM) row.store(d, static_cast<float>(o[i] * inverse));
  }
  if (lane == 0) row.store_lse(sum == 0 ? -infinity() : maximum + __logf(sum));
}
