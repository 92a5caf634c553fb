#include "common/cases/tolerance.h"

#include <cmath>
#include <cstddef>

namespace attn {

// The oracle reads the rounded inputs, so these have no error. A kernel computes
//
//   o = sum over the row's n keys of p v / sum of p,   p = 2^(log2(e) s - shift),   w = p / sum of p,
//
// and errs in six places. u is 2^-24, half a unit in the last place of f32; `unit` is the same of another type: 2^-11
// of f16, 2^-8 of bf16.
//
// 1. P is rounded to the 16 bits of V for the product P V: an error of one unit at most, relative to the weight, in the
//    numerator alone. Those of different keys are independent, so in o they add up to a standard deviation of
//    0.4 unit spread, spread = sqrt(sum of (w v)^2). The largest of a million is five times that, 2 units, and a row of
//    one key can take one. Where all weights are nearly the same, all are rounded the same way: unit |o|.
// 2. A score s = scale q k is a sum of d products in f32. Rounding its partial sums to nearest errs by u scale |q| |k|
//    times a factor that grows with sqrt(d). Tensor cores round them towards zero, all `steps` the same way, by 2 u of
//    the partial sum at most and u / 2 of s on average: d / 16 steps, or 3 d / 8 for three products of tf32, which
//    stand for one of f32. Scaling and the rounding of exponents add some u of |s|. An error of a score is a relative
//    error of its weight, in numerator and denominator: o errs by (4 + sqrt(d) + steps / 2) u score_size (spread +
//    |o|). A hook's own exp or tanh may add 1e-5, or a share of the score that the hook
//    names.
// 3. The exponential: 2^-22 of a GPU's, 2e-7 of the cpu's polynomial, and 2^-22 for the products P V of tf32; 2^-20 for
//    all. For bf16 the cpu takes a polynomial of 8e-5, an error that a row of few keys shows in full.
// 4. Sums over keys in f32, whose partial sums are at most swing + |o|, from whichever end they begin. Rounded to
//    nearest, n errors of at most u of the partial sum add up to about sqrt(n) u of it (Higham and Mary 2019). Tensor
//    cores round towards zero, all n / 16 steps the same way, by at most 2 u. (Of f32 `mma_sync` adds up blocks in f32;
//    64 u hold the steps within a block.) The 64 u also hold the reciprocal, the logarithm and the few u of a
//    rescaling; the slack of lazy rescaling only moves exponents.
// 5. A weight far below the sum that it is added to is not rounded at random, but lost: at most u of the sum for each
//    weight below 2^-22 of it. Random inputs have none up to 16384 keys; beside a key that takes most of the row's
//    weight, almost all are.
// 6. O is rounded to out_dtype: unit |o|.
//
// The log-sum-exp has neither V nor rounded weights in it: it errs by what is common to the weights, 2 to 5, and by its
// own rounding. Bounds that are reached, such as those of 1 and 6, are taken twice or more, so that a correct kernel
// uses about half of its tolerance.
//
// Why a wrong block shows: leaving out m of n keys moves o by sqrt(m / n) spread times a number that is about normally
// distributed, another one for each element, and the log-sum-exp by m / n. For m = 64 and n = 65536 this is 0.03 spread
// and 1e-3. The tolerances of bf16, the widest, are then 0.02 spread + 0.012 |o|, |o| being about as large as spread,
// and 2.1e-4.
AttentionTolerance attention_tolerance(const AttentionShape& shape, DType dtype, DType out_dtype, bool hooked,
                                       const ReferenceRows& want, double score_error) {
  constexpr double u = 0x1p-24;
  const auto unit = [](DType type) { return type == DType::f32 ? u : type == DType::f16 ? 0x1p-11 : 0x1p-8; };
  const double weight_unit = dtype == DType::f32 ? 0 : unit(dtype);
  const double exponential = dtype == DType::bf16 ? 2 * 8e-5 : 0x1p-20;
  const double hook = hooked ? 1e-5 : 0;
  // Of f16 the spacing of denormals. Of others what is below every number that counts.
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
