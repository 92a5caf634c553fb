// Statistics of samples: rounds in which several subjects take turns, medians with bootstrap confidence intervals, and
// ratios of paired samples. docs/measuring.md explains the constants.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/records/statistics.h"

namespace attn {

/// device_hot: device time, caches as the previous sample left them. device_cold: device time, caches flushed before
/// each sample. host: time from submit to completion on the host's clock.
enum class Scope { device_hot, device_cold, host };
std::string_view name(Scope scope);
/// Throws BadInput for a text that names no scope.
Scope parse_scope(const std::string& text);

/// Samples in seconds. In a round each subject has one turn. A `Round` has the samples of one subject in one scope,
/// from one turn. A `Series` has the rounds of one subject in one scope.
using Round = std::vector<double>;
using Series = std::vector<Round>;

struct TimingPolicy {
  int warmup = 4;  // samples of each subject before the first round, which are not kept
  int samples_per_round = 1;
  int min_samples = 10;  // per subject, before a narrow interval may end the sampling
  int max_samples = 200;
  double target_ci = 0.01;  // sampling stops once (ci_hi - ci_lo) / 2 / median is at most target_ci for each subject
  double budget_s = 1;      // for all subjects together; min_rounds rounds are measured even if they take longer
  int min_rounds = 3;
};

struct Estimate {
  double value = 0, ci_lo = 0, ci_hi = 0;
};

struct Timing {
  Scope scope = Scope::device_hot;
  int n = 0, rounds = 0;
  double median_s = 0, ci_lo_s = 0, ci_hi_s = 0;  // 95 % interval of the median, bootstrap over rounds
  double cv = 0;                                  // standard deviation / mean of all samples
  double min_s = 0;
  std::string stop;  // why sampling ended: "ci", "budget", "max" or "interrupted"

  Estimate median() const { return {median_s, ci_lo_s, ci_hi_s}; }
};

/// Takes one sample and returns the seconds of each scope that the sampler observes, always in the same order.
using Sampler = std::function<std::vector<double>()>;

struct Measured {
  std::vector<Series> series;  // one series for each scope that the sampler returns
  std::string stop;            // as Timing::stop
};

/// Samples the subjects in turn (A B C C B A A B C ...) until the interval of each subject's first series is narrow
/// enough or, after at least min_rounds rounds, budget_s or max_samples is reached. `interrupted` is polled before each
/// sample. After an interruption the unfinished round is left out for all subjects; without a finished round, `series`
/// is empty. Throws std::runtime_error if a sample after the warm-up is not a finite number above 0.
std::vector<Measured> measure_interleaved(std::span<const Sampler> subjects, const TimingPolicy& policy,
                                          const std::function<bool()>& interrupted = {},
                                          const std::function<void()>& after_round = {});

/// Median of all samples, with a 95 % interval from 2000 bootstrap resamples of rounds. The interval of a single round
/// reaches from its lowest to its highest sample. Throws std::invalid_argument without samples.
Estimate bootstrap_median(const Series& series, uint64_t seed);
/// Statistics of a series; n = 0 without samples.
Timing summarize(const Series& series, Scope scope, std::string stop, uint64_t seed);

/// Median of the ratios contender / baseline, with a bootstrap interval over rounds. Each ratio is of sample i of a
/// round in both series; surplus samples of a round are left out. Throws std::invalid_argument if the series differ in
/// the number of rounds.
Estimate ratio(const Series& baseline, const Series& contender, uint64_t seed);

struct ScalingPoint {
  double x;
  Estimate time;
};
/// Exponent b of time = a * x^b by least squares in log-log space. The interval of b follows from the intervals of the
/// times, which are independent, so that the squares of their contributions add up. Throws std::invalid_argument
/// without two points of different x, and if an x, or the lower end of a time's interval, is not above 0.
Estimate scaling_exponent(std::span<const ScalingPoint> points);

}  // namespace attn
