#include "common/records/pool.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>
#include <tuple>

namespace attn {
namespace {

Session session_of(const std::vector<double>& values, double error = 0.001) {
  Session session;
  for (const double value : values) session.push_back({static_cast<int>(session.size()) + 1, value, error * value, 5});
  return session;
}

Pooled pool_one(const Session& session, const Spread& prior = {0.01, 4}) {
  return pool(std::vector<Session>{session}, prior, true);
}

/// The width of the interval for the next run.
double next_width(const Pooled& pooled) { return pooled.next_hi - pooled.next_lo; }

TEST(PoolTest, TakesTheGeometricMeanOfRatios) {
  const Pooled pooled = pool_one(session_of({0.5, 2}));
  EXPECT_NEAR(pooled.value, 1, 1e-12);
  EXPECT_NEAR(pooled.ci_lo * pooled.ci_hi, 1, 1e-9) << "not symmetric in logarithms";
  EXPECT_EQ(pooled.processes, 2);
  EXPECT_EQ(pooled.sessions, 1);
  EXPECT_NEAR(pooled.tau, std::sqrt(2.0) * std::log(2), 1e-3);
  EXPECT_LT(pooled.next_lo, pooled.ci_lo);
  EXPECT_LT(pooled.ci_lo, pooled.value);
  EXPECT_LT(pooled.ci_hi, pooled.next_hi);
  const Pooled rough = pool_one(session_of({1, 1, 1}, 1e4));
  for (const double end : {rough.ci_lo, rough.ci_hi, rough.next_lo, rough.next_hi})
    EXPECT_TRUE(std::isfinite(end) && end > 0) << end;
}

TEST(PoolTest, ProcessesAndSessionsThatDisagreeWidenTheIntervals) {
  const Session quiet = session_of({1.000, 1.001, 0.999}), noisy = session_of({1.0, 1.1, 0.9});
  EXPECT_GT(next_width(pool_one(noisy)), 3 * next_width(pool_one(quiet)));
  EXPECT_GT(pool_one(noisy).tau, 0.05);
  const Session alike = session_of({1.001, 1.000, 0.999}), apart = session_of({1.101, 1.100, 1.099});
  const Pooled same = pool(std::vector{quiet, alike}, {0.01, 4}, true);
  const Pooled other = pool(std::vector{quiet, apart}, {0.01, 4}, true);
  EXPECT_GT(other.ci_hi - other.ci_lo, 2 * (same.ci_hi - same.ci_lo));
  EXPECT_EQ(other.sessions, 2);
  EXPECT_NEAR(other.value, std::sqrt(1.0 * 1.1), 1e-3);
}

TEST(PoolTest, OnePartIsPooledWithThePriorAndItsOwnError) {
  const Pooled exact = pool_one(session_of({1}, 0)), rough = pool_one(session_of({1}, 0.1));
  // The 0.975 quantile of t with 4 degrees of freedom is 2.776. The difference of two runs of one process each has a
  // variance of 2 * (Spread::between + 1) = 6 times the variance between processes.
  EXPECT_NEAR(std::log(exact.next_hi), 2.776 * 0.01 * std::sqrt(6), 1e-4);
  EXPECT_GT(rough.next_hi, exact.next_hi);
  EXPECT_EQ(exact.tau, 0);
}

TEST(PoolTest, FiguresThatMayBeNegativeArePooledAsTheyAre) {
  const Session session = {{1, -0.2, 0.01, 5}, {2, 0.1, 0.01, 5}};
  const Pooled pooled = pool(std::vector<Session>{session}, {0.01, 4}, false, 2);
  EXPECT_NEAR(pooled.value, -0.05, 1e-12);
  EXPECT_NEAR(pooled.value - pooled.next_lo, pooled.next_hi - pooled.value, 1e-12);
  EXPECT_THROW(pool(std::vector<Session>{session}, {0.01, 4}, true), std::invalid_argument);
  EXPECT_THROW(pool({}, {0.01, 4}, false), std::invalid_argument);
}

TEST(PoolTest, GivesTheProbabilityOfTheSameSideOfAThreshold) {
  const Pooled pooled = pool_one(session_of({1.00, 1.01, 0.99}));
  EXPECT_NEAR(same_side(pooled, pooled.next_hi, true), 0.975, 1e-9);
  EXPECT_NEAR(same_side(pooled, pooled.next_lo, true), 0.975, 1e-9);
  EXPECT_NEAR(same_side(pooled, pooled.value, true), 0.5, 1e-9);
  EXPECT_GT(same_side(pooled, 2, true), 0.999);
}

TEST(PoolTest, ARatioOfTwoRunsHasTheWidthOfNextAndMoreRunsNarrowIt) {
  const std::vector<Session> a = {session_of({1})}, b = {session_of({1.1})};
  const Estimate ratio = pooled_ratio(a, b, {0.01, 4});
  const Pooled now = pool(a, {0.01, 4}, true);
  EXPECT_NEAR(ratio.value, 1.1, 1e-12);
  EXPECT_NEAR(ratio.ci_hi / ratio.value, now.next_hi / now.value, 1e-12);
  EXPECT_NEAR(ratio.ci_lo / ratio.value, now.next_lo / now.value, 1e-12);
  for (const std::vector<Session>& wrong : {std::vector<Session>{}, {session_of({0})}})
    EXPECT_THROW(pooled_ratio(a, wrong, {}), std::invalid_argument);
  const std::vector<Session> three(3, a[0]), apart = {a[0], a[0], session_of({1.2})};
  const auto half = [](const std::vector<Session>& one, const std::vector<Session>& other) {
    const Estimate found = pooled_ratio(one, other, {0.01, 1});
    return found.ci_hi / found.value - 1;
  };
  EXPECT_LT(half(three, three), half(a, a) / 3);
  EXPECT_GT(half(apart, three), 0.1) << "runs that disagree must widen the interval";
}

/// Simulates runs by the model of pool.h, with the variance of each claim drawn from the prior.
struct Simulation {
  Spread prior;
  int processes;
  double error;  // standard error from a process's own rounds

  /// `sessions`: the number of runs of each side of pooled_ratio(); 0 tests the interval of the next run instead.
  double covered(int claims, int sessions = 0) {
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    int inside = 0;
    for (int i = 0; i < claims; ++i) {
      std::gamma_distribution<double> chi_squared(prior.freedom / 2, 2);
      const double sigma = prior.scale * std::sqrt(prior.freedom / chi_squared(random));
      const auto run = [&] {
        const double of_session = sigma * std::sqrt(prior.between) * normal(random);
        Session session;
        for (int process = 1; process <= processes; ++process) {
          const double log_value = of_session + sigma * normal(random) + error * normal(random);
          session.push_back({process, std::exp(log_value), error * std::exp(log_value), 5});
        }
        return session;
      };
      if (sessions > 0) {
        std::vector<Session> a, b;
        for (int session = 0; session < sessions; ++session) a.push_back(run()), b.push_back(run());
        const Estimate ratio = pooled_ratio(a, b, prior);
        inside += ratio.ci_lo <= 1 && 1 <= ratio.ci_hi;
        continue;
      }
      const Pooled now = pool(std::vector<Session>{run()}, prior, true);
      const Pooled next = pool(std::vector<Session>{run()}, prior, true);
      inside += now.next_lo <= next.value && next.value <= now.next_hi;
    }
    return static_cast<double>(inside) / claims;
  }
};

TEST(PoolTest, IntervalsHoldNineteenOfTwenty) {
  for (const double freedom : {1.5, 3.0, 10.0}) {
    for (const auto& [processes, error, sessions] :
         {std::tuple{1, 0.0, 0}, {3, 0.0, 0}, {5, 0.0, 0}, {1, 0.005, 0}, {3, 0.005, 0}, {1, 0.0, 1}, {1, 0.0, 3}}) {
      const double covered = Simulation{{0.01, freedom}, processes, error}.covered(4000, sessions);
      EXPECT_GE(covered, 0.93) << processes << " " << freedom << " " << error << " " << sessions;
      EXPECT_LE(covered, 0.97) << processes << " " << freedom << " " << error << " " << sessions;
    }
  }
}

}  // namespace
}  // namespace attn
