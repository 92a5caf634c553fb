#include "common/records/statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

namespace attn {
namespace {

// The values of the tables are mpmath 1.3.0's, computed with 50 digits: betainc(regularized=True), and its inverse by
// bisection. They are the values of SciPy's special.betainc, stats.t.ppf and stats.binomtest().proportion_ci().

TEST(Statistics, IncompleteBeta) {
  for (const auto& [x, a, b, value] : {std::array{0.1, 0.5, 0.5, 0.204832764699133},
                                       {0.3, 2.0, 5.0, 0.579825},
                                       {0.5, 10.0, 0.5, 0.000233447434748622},
                                       {0.9, 30.0, 4.5, 0.670206675393246},
                                       {0.02, 1.25, 150.0, 0.925044006454355},
                                       {0.999, 700.0, 1.5, 0.705253345206638},
                                       {0.0, 2.0, 3.0, 0.0},
                                       {1.0, 2.0, 3.0, 1.0}}) {
    EXPECT_NEAR(incomplete_beta(x, a, b), value, 1e-12) << x << " " << a << " " << b;
  }
}

TEST(Statistics, StudentsDistribution) {
  for (const auto& [probability, freedom, t] : {std::array{0.975, 1.0, 12.7062047361747},
                                                {0.975, 1.5, 6.01666310442793},
                                                {0.975, 2.0, 4.30265272974946},
                                                {0.975, 4.0, 2.77644510519779},
                                                {0.975, 10.0, 2.22813885198627},
                                                {0.975, 100.0, 1.98397151852355},
                                                {0.9750021, 30.0, 2.0423123803146},
                                                {0.95, 2.5, 2.55821861413594},
                                                {0.6, 7.0, 0.263166861352023},
                                                {0.5, 3.0, 0.0}}) {
    EXPECT_NEAR(student_quantile(probability, freedom), t, 1e-10 * (1 + t)) << probability << " " << freedom;
    EXPECT_NEAR(student_cdf(t, freedom), probability, 1e-12);
    EXPECT_NEAR(student_cdf(-t, freedom), 1 - probability, 1e-12);
  }
  for (const auto& [probability, freedom] : {std::pair{1.0, 3.0}, {0.4, 3.0}, {0.9, 0.0}})
    EXPECT_THROW(student_quantile(probability, freedom), std::invalid_argument);
}

TEST(Statistics, ExactIntervalOfAShare) {
  struct Share {
    int64_t count, total;
    double low, high;
  };
  for (const auto& [count, total, low, high] :
       std::vector<Share>{{0, 10, 0, 0.308497107818761},
                          {10, 10, 0.691502892181239, 1},
                          {5, 10, 0.187086028447399, 0.812913971552601},
                          {1, 20, 0.0012650894979498, 0.248732762772028},
                          {3, 300, 0.00206700723509232, 0.0289445112556926},
                          {0, 51, 0, 0.0697770307495387},
                          {21, 300, 0.0438503447554294, 0.10501399955005},
                          {9500, 10000, 0.945545472971641, 0.954190057801229}}) {
    EXPECT_NEAR(share_interval(count, total).first, low, 1e-10) << count << " of " << total;
    EXPECT_NEAR(share_interval(count, total).second, high, 1e-10) << count << " of " << total;
  }
  for (const auto& [count, total] : {std::pair{-1, 3}, {4, 3}, {0, 0}})
    EXPECT_THROW(share_interval(count, total), std::invalid_argument);
}

TEST(Statistics, MedianAndDigits) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({7}), 7);
  EXPECT_THROW(median({}), std::invalid_argument);
  EXPECT_EQ(rounded(0.0123456789, 3), 0.0123);
  EXPECT_NEAR(standard_error(1.02, 4.94), 1, 1e-12);
}

}  // namespace
}  // namespace attn
