// Statistics of samples and of distributions: the one place of each. Python programs ask `kb interval`.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace attn {

/// The median; of an even number of values, the mean of the two in the middle. Throws std::invalid_argument without
/// values.
double median(std::vector<double> values);

/// The number with so many significant digits.
double rounded(double value, int digits);

/// The standard error of an estimate with the 95 % interval [lo, hi] of a normal distribution.
double standard_error(double lo, double hi);

/// The regularised incomplete beta function I_x(a, b), for `a` and `b` above 0.
double incomplete_beta(double x, double a, double b);

/// The probability that a variable of Student's t distribution with `freedom` degrees of freedom is at most `t`.
double student_cdf(double t, double freedom);
/// The t whose student_cdf() is `probability`. Throws std::invalid_argument unless the probability is from 0.5 to below
/// 1 and `freedom` is above 0.
double student_quantile(double probability, double freedom);

/// The exact 95 % interval of a share of which `count` of `total` cases are known (Clopper and Pearson 1934). Throws
/// std::invalid_argument unless `count` is from 0 to `total` and `total` is above 0.
std::pair<double, double> share_interval(int64_t count, int64_t total);

}  // namespace attn
