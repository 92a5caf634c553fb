#include "common/records/pool.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common/records/statistics.h"

namespace attn {
namespace {

double square(double x) { return x * x; }

double on_scale(double value, bool relative) { return relative ? std::log(value) : value; }

/// The interval of a few samples of a busy machine may exceed the range of double; records take only finite numbers.
double finite_exp(double logarithm) {
  constexpr double widest = 460;  // values lie between 1e-200 and 1e200
  return std::exp(std::clamp(logarithm, -widest, widest));
}

/// What sessions tell about a figure (if `relative`: about its logarithm) and about sigma^2.
struct Sums {
  double centre = 0;   // the weighted mean of the sessions' means
  double weights = 0;  // sum of the sessions' weights; a weight is sigma^2 / variance of the session's mean (pool.h)
  double errors = 0;   // sum of the squares of the processes' own errors
  double within = 0;   // sum of squares around the means of the sessions
  double between = 0;  // weighted sum of squares of the sessions' means around the centre
  int processes = 0, sessions = 0;
};

/// `between`: Spread::between.
Sums sums_of(std::span<const Session> sessions, double between, bool relative) {
  Sums sums;
  std::vector<double> means, weight_of;
  for (const Session& session : sessions) {
    if (session.empty()) continue;
    const auto count = static_cast<double>(session.size());
    double mean = 0;
    for (const Part& part : session) {
      if (relative && !(part.value > 0)) throw std::invalid_argument("pool: a figure is not above 0");
      mean += on_scale(part.value, relative) / count;
      sums.errors += square(relative ? part.error / part.value : part.error);
    }
    for (const Part& part : session) sums.within += square(on_scale(part.value, relative) - mean);
    means.push_back(mean);
    weight_of.push_back(1 / (between + 1 / count));
    sums.weights += weight_of.back();
    sums.centre += weight_of.back() * mean;
    sums.processes += static_cast<int>(session.size());
    ++sums.sessions;
  }
  if (means.empty()) throw std::invalid_argument("pool: no parts");
  sums.centre /= sums.weights;
  for (size_t i = 0; i < means.size(); ++i) sums.between += weight_of[i] * square(means[i] - sums.centre);
  return sums;
}

}  // namespace

Pooled pool(std::span<const Session> sessions, const Spread& prior, bool relative, double unit) {
  const Sums sums = sums_of(sessions, prior.between, relative);
  Pooled pooled;
  pooled.processes = sums.processes;
  pooled.sessions = sums.sessions;
  // within / of_processes and between / of_sessions are estimates of sigma^2. The prior counts as a third estimate. Its
  // scale does not include the processes' own errors, so their mean square (`own`) is added to the square of the scale.
  const double own = sums.errors / sums.processes;
  const int of_processes = sums.processes - sums.sessions, of_sessions = sums.sessions - 1;
  const double known = square(prior.scale * (relative ? 1 : std::abs(unit))) + own;
  pooled.freedom = prior.freedom + of_processes + of_sessions;
  const double variance = (prior.freedom * known + sums.within + sums.between) / pooled.freedom;
  if (of_processes > 0) pooled.tau = std::sqrt(std::max(0.0, sums.within / of_processes - own));

  const auto last = static_cast<double>(sessions.back().empty() ? 1 : sessions.back().size());
  const double t = student_quantile(0.975, pooled.freedom);
  const double half = t * std::sqrt(variance / sums.weights);
  const double half_next = t * std::sqrt(variance * (1 / sums.weights + prior.between + 1 / last));
  const auto back = [&](double value) { return relative ? finite_exp(value) : value; };
  pooled.value = back(sums.centre);
  pooled.ci_lo = back(sums.centre - half);
  pooled.ci_hi = back(sums.centre + half);
  pooled.next_lo = back(sums.centre - half_next);
  pooled.next_hi = back(sums.centre + half_next);
  return pooled;
}

Estimate pooled_ratio(std::span<const Session> a, std::span<const Session> b, const Spread& prior) {
  const Sums of_a = sums_of(a, prior.between, true), of_b = sums_of(b, prior.between, true);
  const double own = (of_a.errors + of_b.errors) / (of_a.processes + of_b.processes);
  const double freedom = prior.freedom + of_a.processes - 1 + of_b.processes - 1;
  const double variance =
      (prior.freedom * (square(prior.scale) + own) + of_a.within + of_a.between + of_b.within + of_b.between) / freedom;
  const double half = student_quantile(0.975, freedom) * std::sqrt(variance * (1 / of_a.weights + 1 / of_b.weights));
  const double centre = of_b.centre - of_a.centre;
  return {finite_exp(centre), finite_exp(centre - half), finite_exp(centre + half)};
}

double same_side(const Pooled& pooled, double threshold, bool relative) {
  if (relative && !(threshold > 0)) return 1;  // the figure is positive in every run
  const double half = (on_scale(pooled.next_hi, relative) - on_scale(pooled.next_lo, relative)) / 2;
  const double distance = std::abs(on_scale(pooled.value, relative) - on_scale(threshold, relative));
  if (!(half > 0)) return 1;
  return student_cdf(distance / half * student_quantile(0.975, pooled.freedom), pooled.freedom);
}

}  // namespace attn
