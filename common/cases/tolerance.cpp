#include "common/cases/tolerance.h"

#include <cmath>
#include <cstddef>

namespace attn {

// The oracle reads the rounded inputs, so the inputs have no error. A kernel computes
//
//   o = sum over the row's n keys of p v / sum of p,   p = 2^(log2(e) s - shift),   w = p / sum of p,
//
// and makes six kinds of errors. u is 2^-24, half a unit in the last place of f32. `unit` is half a unit in the last
// place of another type: 2^-11 for f16, 2^-8 for bf16.
//
// 1. P is rounded to the 16 bits of V for the product P V. The relative error of p is at most one unit, and occurs only
//    in the numerator. The errors of different keys are independent, so in o they add up to a standard deviation of
//    0.4 unit spread, where spread = sqrt(sum of (w v)^2). The largest error among a million elements is about five
//    standard deviations, or 2 unit spread. A row of one key can have an error of unit |o|. Where all weights are
//    nearly equal, rounding moves all of them in the same direction, and the error of o is unit |o|.
// 2. A score s = scale q k is a sum of d products in f32. Rounding the partial sums to nearest errs by u scale |q| |k|
//    times a factor that grows with sqrt(d). Tensor cores add up the products in steps, and round each partial sum
//    towards zero. So all steps err in the same direction, each by at most 2 u of the partial sum and by u / 2 of s on
//    average. 16-bit types have d / 16 steps. f32 has 3 d / 8 steps: a kernel splits each number of f32 into two
//    numbers of tf32, and computes three products of these numbers, in steps of 8, for one product of f32. Scaling, and
//    rounding log2(e) s - shift, add some u of |s|. An error of a score is a relative error of its weight, in the
//    numerator and the denominator: o errs by (4 + sqrt(d) + steps / 2) u score_size (spread + |o|). A hook's own exp
//    or tanh may add a relative error of 1e-5 to the weight. A hook may also state a relative error of the score
//    (`score_error`).
// 3. The relative error of the exponential is 2^-22 on a GPU, and 2e-7 with the cpu's polynomial. The products P V of
//    tf32 add 2^-22. The tolerance is 2^-20. For bf16 the cpu uses a polynomial with an error of 8e-5, which a row of
//    few keys shows in full; there the tolerance is twice this error.
// 4. Sums over keys are in f32. A partial sum is at most swing + |o|, whether a kernel adds up the keys from the first
//    to the last or from the last to the first. With rounding to nearest, n errors of at most u of the partial sum add
//    up to about sqrt(n) u of the sum (Higham and Mary 2019). Tensor cores round towards zero: all n / 16 steps err in
//    the same direction, by at most 2 u. With f32 inputs `mma_sync` uses tensor cores only within a block of keys, and
//    adds the blocks' sums with rounding to nearest. The tolerance adds 64 u for the steps within a block of keys, the
//    reciprocal, the logarithm and the few u of a rescaling. In a kernel that rescales seldom the shift may be below
//    the row's maximum. Its weights and sums are then larger, by a factor of at most 2^8, but their relative errors are
//    not.
// 5. A weight far below the sum that it is added to is lost completely. Such errors have the same direction, and do not
//    cancel. Each weight below 2^-22 of the sum loses at most u of the sum. Random inputs of at most 16384 keys have
//    hardly any such weights. Where one key takes most of the row's weight, almost all other weights are lost.
// 6. O is rounded to out_dtype: unit |o|.
//
// The log-sum-exp contains neither V nor rounded weights. Its errors are errors 2 to 5 and its own rounding. Kernels
// reach some of these bounds, for example that of error 6. The tolerance counts such a bound twice, so a correct kernel
// usually uses at most about half of the tolerance.
//
// The error of a wrong block exceeds the tolerance. If a kernel leaves out m of n keys, o moves by sqrt(m / n) spread
// times a number that is about normally distributed and differs between elements. The log-sum-exp moves by about m / n.
// For m = 64 and n = 65536, o moves by about 0.03 spread and the log-sum-exp by 1e-3. The tolerances of bf16 are the
// widest: for these m and n they are 0.02 spread + 0.012 |o| for o, and 2.1e-4 for the log-sum-exp; |o| is about as
// large as spread.
AttentionTolerance attention_tolerance(const AttentionShape& shape, DType dtype, DType out_dtype, bool hooked,
                                       const ReferenceRows& want, double score_error) {
  constexpr double u = 0x1p-24;
  const auto unit = [](DType type) { return type == DType::f32 ? u : type == DType::f16 ? 0x1p-11 : 0x1p-8; };
  const double weight_unit = dtype == DType::f32 ? 0 : unit(dtype);
  const double exponential = dtype == DType::bf16 ? 2 * 8e-5 : 0x1p-20;
  const double hook = hooked ? 1e-5 : 0;
  // The spacing of denormals of f16; for the other types, too small to matter.
  const double least = out_dtype == DType::f16 ? 0x1p-24 : 1e-30;

  const size_t dim = static_cast<size_t>(shape.head_dim);
  const double products = static_cast<double>(dim);
  const double steps = dtype == DType::f32 ? 3 * products / 8 : products / 16;
  AttentionTolerance allowed;
  allowed.o.resize(want.o.size());
  allowed.lse.resize(want.lse.size());
  for (size_t row = 0; row < want.rows.size(); ++row) {
    const double keys = static_cast<double>(shape.keys_seen(want.rows[row].q));
    const double score = (4 + std::sqrt(products) + steps / 2) * u * want.score_size[row];
    const double weight = score + exponential + hook + score_error * want.mean_score[row];
    const double lost = 2 * u * static_cast<double>(want.tiny_weights[row]);
    const double sum = u * (2 * std::sqrt(keys) + 64) + lost;
    const double product = sum + (dtype == DType::f32 ? 0 : u * keys / 8);
    allowed.lse[row] = weight + sum + 4 * u * std::abs(want.lse[row]);
    for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
      allowed.o[i] = (5 * weight_unit + weight) * want.spread[i] + product * want.swing[i] +
                     (weight_unit + 2 * unit(out_dtype) + weight + product + sum) * std::abs(want.o[i]) + least;
    }
  }
  return allowed;
}

}  // namespace attn
