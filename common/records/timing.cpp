#include "common/records/timing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "common/base/error.h"

namespace attn {
namespace {

constexpr std::string_view scope_names[] = {"device_hot", "device_cold", "host"};
constexpr int resamples = 2000;
// Fewer rounds give no 95 % interval of a median: even the interval from the lowest to the highest round misses the
// median with probability 2 * 0.5^rounds. This probability is below 5 % for six rounds or more.
constexpr int min_rounds_for_ci = 6;

/// The median of a series, and medians of resamples: rounds drawn from the series with replacement. Because the samples
/// are sorted once, the median of a resample takes one pass over them.
class Resampler {
 public:
  explicit Resampler(const Series& series) {
    for (const Round& round : series) {
      if (round.empty()) continue;
      for (double sample : round) sorted_.push_back({sample, sizes_.size()});
      sizes_.push_back(round.size());
    }
    if (sorted_.empty()) throw std::invalid_argument("statistics need at least one sample");
    std::sort(sorted_.begin(), sorted_.end(), [](const Sample& a, const Sample& b) { return a.value < b.value; });
  }

  size_t rounds() const { return sizes_.size(); }

  double median() {
    weights_.assign(rounds(), 1);
    return weighted_median(sorted_.size());
  }

  double draw(std::mt19937_64& random) {
    // A single round does not show the spread between rounds, so its extremes stand for it.
    if (rounds() == 1) return random() >> 63 ? sorted_.back().value : sorted_.front().value;
    weights_.assign(rounds(), 0);
    size_t total = 0;
    for (size_t i = 0; i < rounds(); ++i) {
      const size_t round = (random() >> 32) * rounds() >> 32;  // the same draws with every standard library
      ++weights_[round];
      total += sizes_[round];
    }
    return weighted_median(total);
  }

 private:
  struct Sample {
    double value;
    size_t round;
  };

  /// The median of `total` samples, where each sample counts as often as its round was drawn.
  double weighted_median(size_t total) const {
    auto sample = sorted_.begin();
    size_t seen = weights_[sample->round];
    while (seen <= (total - 1) / 2) seen += weights_[(++sample)->round];
    const double lower = sample->value;
    while (seen <= total / 2) seen += weights_[(++sample)->round];
    return (lower + sample->value) / 2;
  }

  std::vector<Sample> sorted_;
  std::vector<size_t> sizes_, weights_;  // per round
};

/// Returns `value` with the interval from the 2.5th to the 97.5th percentile of what `draw` returns.
template <typename Draw>
Estimate bootstrap(double value, uint64_t seed, Draw draw) {
  std::mt19937_64 random(seed);
  std::vector<double> drawn(resamples);
  for (double& replicate : drawn) replicate = draw(random);
  std::sort(drawn.begin(), drawn.end());
  constexpr int tail = resamples / 40;  // 2.5 %
  return {value, drawn[tail], drawn[resamples - 1 - tail]};
}

bool narrow_enough(const Series& series, double target_ci) {
  const Estimate estimate = bootstrap_median(series, series.size());
  return (estimate.ci_hi - estimate.ci_lo) / 2 <= target_ci * estimate.value;
}

}  // namespace

std::string_view name(Scope scope) { return scope_names[static_cast<size_t>(scope)]; }

Scope parse_scope(const std::string& text) {
  const auto found = std::ranges::find(scope_names, text);
  if (found == std::end(scope_names))
    throw BadInput(fmt::format("scope '{}' is not allowed; one of {}", text, fmt::join(scope_names, ", ")));
  return static_cast<Scope>(found - scope_names);
}

std::vector<Measured> measure_interleaved(std::span<const Sampler> subjects, const TimingPolicy& policy,
                                          const std::function<bool()>& interrupted,
                                          const std::function<void()>& after_round) {
  if (policy.samples_per_round < 1) throw std::invalid_argument("samples_per_round must be at least 1");
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(policy.budget_s);
  std::vector<Measured> measured(subjects.size());
  const auto finish = [&](const char* stop) {
    for (Measured& subject : measured) subject.stop = stop;
    return std::move(measured);
  };
  if (subjects.empty()) return {};

  for (const Sampler& sample : subjects) {
    for (int i = 0; i < policy.warmup; ++i) {
      if (interrupted && interrupted()) return finish("interrupted");
      sample();
    }
  }

  // Each test of the interval's width takes a bootstrap, during which the device cools down, and frequent tests would
  // stop at intervals that are narrow by chance. So the rounds grow by about a quarter between tests.
  int next_look = std::max({policy.min_rounds, min_rounds_for_ci,
                            (policy.min_samples + policy.samples_per_round - 1) / policy.samples_per_round});
  for (int rounds = 1;; ++rounds) {
    // Only whole rounds are kept, so that the series of all subjects stay paired.
    std::vector<Series> current(subjects.size());
    for (size_t turn = 0; turn < subjects.size(); ++turn) {
      // A B C, then C B A, so that a drift that is linear over two rounds cancels.
      const size_t subject = rounds % 2 == 1 ? turn : subjects.size() - 1 - turn;
      for (int i = 0; i < policy.samples_per_round; ++i) {
        if (interrupted && interrupted()) return finish("interrupted");
        const std::vector<double> sample = subjects[subject]();
        if (i == 0) current[subject].resize(sample.size());
        if (sample.size() != current[subject].size() || sample.empty()) {
          throw std::logic_error("a sampler must return the same scopes each time, at least one");
        }
        for (size_t scope = 0; scope < sample.size(); ++scope) {
          if (!(sample[scope] > 0) || std::isinf(sample[scope])) {
            throw std::runtime_error(
                fmt::format("a sample took {} s: the device's clock is too coarse or broken", sample[scope]));
          }
          current[subject][scope].push_back(sample[scope]);
        }
      }
    }
    for (size_t subject = 0; subject < subjects.size(); ++subject) {
      std::vector<Series>& series = measured[subject].series;
      series.resize(current[subject].size());
      for (size_t scope = 0; scope < series.size(); ++scope) {
        series[scope].push_back(std::move(current[subject][scope]));
      }
    }

    if (after_round) after_round();
    if (rounds < policy.min_rounds) continue;
    const bool last = rounds >= policy.max_samples / policy.samples_per_round;
    const bool look = rounds >= next_look || (last && rounds >= min_rounds_for_ci);
    if (look && std::all_of(measured.begin(), measured.end(), [&](const Measured& subject) {
          return narrow_enough(subject.series.front(), policy.target_ci);
        })) {
      return finish("ci");
    }
    if (look) next_look = rounds + std::max(1, rounds / 4);
    if (last) return finish("max");
    if (std::chrono::steady_clock::now() >= end) return finish("budget");
  }
}

Estimate bootstrap_median(const Series& series, uint64_t seed) {
  Resampler resampler(series);
  return bootstrap(resampler.median(), seed, [&](std::mt19937_64& random) { return resampler.draw(random); });
}

Timing summarize(const Series& series, Scope scope, std::string stop, uint64_t seed) {
  Timing timing{.scope = scope, .stop = std::move(stop)};
  std::vector<double> samples;
  for (const Round& round : series) {
    samples.insert(samples.end(), round.begin(), round.end());
    timing.rounds += !round.empty();
  }
  timing.n = static_cast<int>(samples.size());
  if (samples.empty()) return timing;

  const Estimate estimate = bootstrap_median(series, seed);
  timing.median_s = estimate.value;
  timing.ci_lo_s = estimate.ci_lo;
  timing.ci_hi_s = estimate.ci_hi;
  timing.min_s = *std::min_element(samples.begin(), samples.end());
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / timing.n;
  double squares = 0;
  for (double sample : samples) squares += (sample - mean) * (sample - mean);
  if (timing.n > 1) timing.cv = std::sqrt(squares / (timing.n - 1)) / mean;
  return timing;
}

Estimate ratio(const Series& baseline, const Series& contender, uint64_t seed) {
  if (baseline.size() != contender.size()) throw std::invalid_argument("ratio: the series differ in rounds");
  Series ratios(baseline.size());
  for (size_t round = 0; round < ratios.size(); ++round) {
    const size_t pairs = std::min(baseline[round].size(), contender[round].size());
    for (size_t i = 0; i < pairs; ++i) ratios[round].push_back(contender[round][i] / baseline[round][i]);
  }
  return bootstrap_median(ratios, seed);
}

Estimate scaling_exponent(std::span<const ScalingPoint> points) {
  std::vector<double> weights;  // at first log(x), then log(x) - mean; the slope is a weighted sum of log(time)
  double mean = 0;
  for (const auto& [x, time] : points) {
    if (!(x > 0) || !(time.ci_lo > 0)) throw std::invalid_argument("scaling_exponent: takes x and times above 0");
    weights.push_back(std::log(x));
    mean += weights.back() / static_cast<double>(points.size());
  }
  double squares = 0;
  for (double& weight : weights) {
    weight -= mean;
    squares += weight * weight;
  }
  const bool differ = std::any_of(points.begin(), points.end(), [&](const auto& p) { return p.x != points[0].x; });
  if (!differ) throw std::invalid_argument("scaling_exponent: needs two points with different x");

  double slope = 0, below = 0, above = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double weight = weights[i] / squares;
    const Estimate& time = points[i].time;
    slope += weight * std::log(time.value);
    const double down = weight * std::log(time.value / time.ci_lo), up = weight * std::log(time.ci_hi / time.value);
    below += weight > 0 ? down * down : up * up;
    above += weight > 0 ? up * up : down * down;
  }
  return {slope, slope - std::sqrt(below), slope + std::sqrt(above)};
}

}  // namespace attn
