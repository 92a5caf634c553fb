#include "common/records/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace attn {
namespace {

/// The continued fraction of the incomplete beta function, by Lentz's method (Abramowitz and Stegun 26.5.8).
double beta_fraction(double x, double a, double b) {
  constexpr double tiny = 1e-300;
  const auto not_zero = [](double value) { return std::abs(value) < tiny ? tiny : value; };
  double c = 1, d = 1 / not_zero(1 - (a + b) * x / (a + 1)), result = d;
  for (int m = 1; m <= 1000; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    for (const double term : {even, odd}) {
      d = 1 / not_zero(1 + term * d);
      c = not_zero(1 + term / c);
      result *= c * d;
    }
    if (std::abs(c * d - 1) < 1e-14) break;
  }
  return result;
}

/// The x from `low` to `high` at which the rising function reaches `wanted`.
template <typename Function>
double solve(const Function& function, double wanted, double low, double high) {
  for (int i = 0; i < 200 && high - low > 1e-12 * high; ++i) {
    const double middle = (low + high) / 2;
    (function(middle) < wanted ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("median of nothing");
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double rounded(double value, int digits) { return std::stod(fmt::format("{:.{}g}", value, digits)); }

double standard_error(double lo, double hi) {
  constexpr double half_width_in_errors = 1.96;
  return (hi - lo) / 2 / half_width_in_errors;
}

double incomplete_beta(double x, double a, double b) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(x, a, b) / a : 1 - front * beta_fraction(1 - x, b, a) / b;
}

double student_cdf(double t, double freedom) {
  const double tail = incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2;
  return t < 0 ? tail : 1 - tail;
}

double student_quantile(double probability, double freedom) {
  if (!(probability >= 0.5 && probability < 1 && freedom > 0))
    throw std::invalid_argument("student_quantile: takes a probability from 0.5 to below 1, and a freedom above 0");
  double high = 1;
  while (student_cdf(high, freedom) < probability) high *= 2;
  return solve([&](double t) { return student_cdf(t, freedom); }, probability, 0, high);
}

std::pair<double, double> share_interval(int64_t count, int64_t total) {
  if (!(0 <= count && count <= total && total > 0))
    throw std::invalid_argument("share_interval: takes a count from 0 to the total, and a total above 0");
  const auto known = static_cast<double>(count), others = static_cast<double>(total - count);
  // The lower end is the 0.025 quantile of a beta distribution, the upper end the 0.975 quantile of another one.
  const auto end = [](double probability, double a, double b) {
    return solve([&](double share) { return incomplete_beta(share, a, b); }, probability, 0, 1);
  };
  return {count == 0 ? 0 : end(0.025, known, others + 1), count == total ? 1 : end(0.975, known + 1, others)};
}

}  // namespace attn
