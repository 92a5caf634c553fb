// The parts of the online softmax that all attention kernels of the cpu dialect share.
#pragma once

#include "common/attention/kernels/sink.h"
#include "common/kernel/base2.h"
#include "common/kernel/cpu.h"

/// The score of a hidden pair, whichever hook hides the pair. This score is also the maximum of a row that has seen no
/// key yet. The exponential turns this score into a weight of 0 without an extra instruction.
constexpr float hidden_score = -__builtin_inff();

/// Returns the shift of a row's scores: their maximum, or 0 in a row that has seen no key yet. With -infinity as the
/// shift, -infinity - -infinity would be NaN.
template <typename V>
INLINE V shift_of(V maximum) {
  return maximum == hidden_score ? V{} : maximum;
}

// exp4() computes powers of 4, because e^s = 4^(s log2(e) / 2), and this exponent has a smaller magnitude than s. So
// the exponent does not overflow if s does not overflow. (The exponent of 2, s log2(e), may overflow.)
constexpr float log4_e = log2_e / 2, ln_4 = 2 * ln_2;

/// If the absolute value of shift * factor is at most this number, a kernel may compute a weight as 4^(s * factor -
/// shift * factor), and the exponent takes one multiply-add. The rounding error of the second product is then at most
/// 2^-14, the same for all keys of a row. For larger products the kernel first takes the distance s - shift, and then
/// multiplies the distance by the factor.
constexpr float largest_product = 2048;

/// Computes 4^x for x <= 0, by a polynomial of degree DEGREE. With DEGREE 5 the relative error is 2e-7, with DEGREE 3
/// 8e-5. DEGREE 3 is for weights that are rounded to 16 bits anyway. The result is exactly 0 for x below -63.25, and
/// NaN for NaN. Adding 1.5 * 2^22 + 127 / 2 to x rounds x to the nearest n / 2. The lowest bits of the sum are then
/// n + 127, the biased exponent of 2^n = 4^(n / 2). The rest of x is in [-1/4, 1/4], and a minimax polynomial gives
/// 4^rest.
template <int DEGREE = 5, typename V>
INLINE V exp4(V x) {
  static_assert(DEGREE == 3 || DEGREE == 5);
  constexpr int lanes = sizeof(V) / sizeof(float);
  constexpr float shifter = 6291456.0f + 63.5f;
  constexpr float smallest = -63.5f;      // here 2^n is 0
  x = x < smallest ? V{} + smallest : x;  // in this order a NaN stays a NaN
  const V shifted = x + shifter;
  const V rest = x - (shifted - shifter);
  V power;  // 2^(2 * rest)
  if constexpr (DEGREE == 3) {
    power = rest * (8 * 5.51716691e-2f) + 4 * 2.42611122e-1f;
    power = power * rest + 2 * 6.93260985e-1f;
    power = power * rest + 9.99928074e-1f;
  } else {
    power = rest * (32 * 1.32647271e-3f) + 16 * 9.67151265e-3f;
    power = power * rest + 8 * 5.55073374e-2f;
    power = power * rest + 4 * 2.40222421e-1f;
    power = power * rest + 2 * 6.93146978e-1f;
    power = power * rest + 1.0f;
  }
  using Bits = Vector<int, lanes>;
  return power * reinterpret_cast<V>(reinterpret_cast<Bits>(shifted) << 23);
}

/// The factor that turns a row's sums into its outputs, and the row's log-sum-exp.
struct RowEnd {
  float share, lse;
};

/// Computes the end of a row. `maximum` * `unit` is the maximum of the scores that the row has seen, in base e. `sum`
/// is the sum of the weights of these scores, or 0 if the row has seen no key. This function adds the sink. `share` is
/// NaN if a score or the sink is NaN or +infinity.
INLINE RowEnd end_of_row(float maximum, float sum, float unit, [[maybe_unused]] const ScoreContext& context) {
  const bool seen = sum != 0;
  const float sink = SINK_IS_NONE ? hidden_score : sink_logit(context), own = seen ? maximum * unit : hidden_score;
  if (SINK_IS_NONE || sink == hidden_score) {
    return {seen ? 1 / sum : 0, seen ? own + ln_2 * __builtin_log2f(sum) : hidden_score};
  }
  const float largest = own > sink ? own : sink, share = seen ? __builtin_exp2f((own - largest) * log2_e) : 0;
  const float total = sum * share + __builtin_exp2f((sink - largest) * log2_e);
  return {share / total, largest + ln_2 * __builtin_log2f(total)};
}
