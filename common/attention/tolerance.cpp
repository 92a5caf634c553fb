#include "common/attention/tolerance.h"

#include <cmath>
#include <cstddef>

namespace attn {

// The oracle reads the rounded inputs, so these have no error. A kernel computes
//
//   o = sum over the row's n keys of p v / sum of p,   p = 2^(log2(e) s - shift),   w = p / sum of p,
//
// and errs in five places. u is 2^-24, half a unit in the last place of f32.
//
// 1. P is rounded to the 16 bits of V before the product P V: a relative error of at most half a unit in the last
//    place, `unit`, 2^-8 of bf16 and 2^-11 of f16, in the numerator alone. Errors of different keys are independent, so
//    what they add up to grows like spread = sqrt(sum of (w v)^2): its standard deviation is 0.4 unit spread. The
//    largest of a million elements takes five of these. A row of one key takes a whole unit. 4 units leave room.
//    Where weights are close to each other (a scale near 0) all are rounded the same way: unit |o|.
// 2. A score s = scale q k is a sum of d products in f32, which err like scale |q| |k| u by a factor that grows with
//    sqrt(d): independent roundings of partial sums on a CPU; on tensor cores, which round towards zero, d / 16 steps,
//    or 3 d / 8 of f32 as three products of tf32 with 2^-22 each. What is done to the score, and the rounding of
//    exponents, adds some u of it. An error of a score is a relative error of its weight, in numerator and denominator.
//    So o errs by (4 + sqrt(d)) u score_size (spread + |o|). A hook's own exp or tanh may add 1e-5.
// 3. The exponential: 2^-22 of a GPU's, 2e-7 of the cpu's polynomial, beside 2^-22 of products of tf32; 2^-20 for all.
//    For bf16 the cpu takes a polynomial of 8e-5, whose errors do not average out where keys are few.
// 4. Sums over keys in f32. Rounded to nearest, n errors of u at most add up to about sqrt(n) u of the sum (Higham and
//    Mary 2019). Tensor cores round towards zero, all n / 16 steps the same way, by 2 u at most. (Of f32 the `mma_sync`
//    kernel adds up blocks in f32; 64 u are for the steps within one.) Partial sums are about as large as
//    spread + |o|: the values of V come with both signs, or else |o| is itself the sum. 64 u also hold the reciprocal,
//    the logarithm and the lazy rescaling, which lets weights grow to 2^8 and changes no relative error.
// 5. O is rounded to out_dtype.
//
// The log-sum-exp has neither P nor V in it: it errs by what is common to the weights' relative errors, 2 to 4, and by
// its own rounding.
//
// Why a wrong block shows: leaving out m keys of n moves o by sqrt(m / n) spread, standard normally distributed over
// elements, and the log-sum-exp by m / n. For m = 64 and n = 65536 this is 0.03 spread and 1e-3. The tolerances of
// bf16, the widest, are 0.016 spread + 0.008 |o| and 2e-4.
AttentionTolerance attention_tolerance(const AttentionShape& shape, DType dtype, DType out_dtype, bool hooked,
                                       const ReferenceRows& want) {
  constexpr double u = 0x1p-24;
  const auto unit = [](DType type) { return type == DType::f32 ? u : type == DType::f16 ? 0x1p-11 : 0x1p-8; };
  const double weight_unit = dtype == DType::f32 ? 0 : unit(dtype);
  const double exponential = dtype == DType::bf16 ? 2 * 8e-5 : 0x1p-20;
  const double hook = hooked ? 1e-5 : 0;
  const double least_o = out_dtype == DType::f16 ? 0x1p-24 : 0x1p-126;  // below this a format has no smaller errors

  const size_t dim = static_cast<size_t>(shape.head_dim);
  AttentionTolerance allowed;
  allowed.o.resize(want.o.size());
  allowed.lse.resize(want.lse.size());
  for (size_t row = 0; row < want.rows.size(); ++row) {
    const double keys = static_cast<double>(shape.keys_seen(want.rows[row].q));
    const double score = (4 + std::sqrt(static_cast<double>(dim))) * u * want.score_size[row];
    const double weight = score + exponential + hook;
    const double sum_to_nearest = u * (2 * std::sqrt(keys) + 64);
    const double sum = sum_to_nearest + (dtype == DType::f32 ? 0 : u * keys / 8);
    allowed.lse[row] = weight + sum_to_nearest + 4 * u * std::abs(want.lse[row]);
    for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
      allowed.o[i] = (4 * weight_unit + weight + sum) * want.spread[i] +
                     (weight_unit + unit(out_dtype) + weight + sum) * std::abs(want.o[i]) + least_o;
    }
  }
  return allowed;
}

}  // namespace attn
