#include "common/data/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace attn {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

std::string place(size_t i) { return "x " + std::to_string(i); }

Check check_one(double got, double want, double allowed) {
  return compare(std::vector{got}, std::vector{want}, std::vector{allowed}, place);
}

TEST(CompareTest, OneElement) {
  struct Case {
    double got, want, allowed;
    bool ok;
  };
  for (const auto& [got, want, allowed, ok] : {Case{5.5, 4, 1.5, true},  // the edge of the tolerance itself
                                               {2.5, 4, 1.5, true},
                                               {std::nextafter(5.5, 6), 4, 1.5, false},
                                               {std::nextafter(2.5, 2), 4, 1.5, false},
                                               {-5.5, -4, 1.5, true},
                                               {4, -4, 1.5, false},
                                               {1, 1, 0, true},
                                               {nan_value, nan_value, 1.5, true},
                                               {nan_value, nan_value, nan_value, true},
                                               {nan_value, 1, 1.5, false},
                                               {1, nan_value, 1.5, false},
                                               {nan_value, infinity, 1.5, false},
                                               {nan_value, 1, infinity, false},
                                               {1, 1.5, nan_value, false},
                                               {infinity, infinity, 1.5, true},
                                               {-infinity, -infinity, 1.5, true},
                                               {-infinity, infinity, 1.5, false},
                                               {1, infinity, 1.5, false},
                                               {infinity, 1, 1.5, false}}) {
    EXPECT_EQ(check_one(got, want, allowed).ok, ok) << got << " for " << want << ", allowed " << allowed;
  }
  const Check check = check_one(4.5, 4, 1.5);
  EXPECT_EQ(check.max_abs, 0.5);
  EXPECT_EQ(check.max_rel, 0.125);
  EXPECT_EQ(check.max_used, 1. / 3);
  EXPECT_EQ(check.worst, "");
}

TEST(CompareTest, ReportsMaximaAndTheElementWithTheLargestRatioOfDifferenceToTolerance) {
  const std::vector<double> got = {1, 2.5, -1, 0.125};
  const std::vector<double> want = {1, 2, -4, 0};
  const Check check = compare(got, want, std::vector{0.01, 0.25, 2.0, 0.5}, place);
  EXPECT_FALSE(check.ok);
  EXPECT_EQ(check.max_abs, 3);
  EXPECT_EQ(check.max_rel, 0.75);  // -1 in place of -4; want = 0 has no relative error
  EXPECT_EQ(check.max_used, 2);
  EXPECT_EQ(check.worst, "x 1: got 2.5, want 2 (tolerance 0.25)");
  EXPECT_EQ(check.rows_checked, 0);
}

TEST(CompareTest, MaximaStayFinite) {
  const Check check =
      compare(std::vector{3.0, nan_value, infinity}, std::vector{2.0, 0.0, 1.0}, std::vector{0.25, 0.0, 0.0}, place);
  EXPECT_EQ(check.max_abs, 1);
  EXPECT_EQ(check.max_rel, 0.5);
  EXPECT_EQ(check.max_used, 4);
  EXPECT_EQ(check.worst, "x 1: got nan, want 0 (tolerance 0)");
}

TEST(CompareTest, SizesMustAgree) {
  const std::vector<double> one = {1}, two = {1, 2};
  EXPECT_THROW(compare(one, two, two, place), std::invalid_argument);
  EXPECT_THROW(compare(two, one, two, place), std::invalid_argument);
  EXPECT_THROW(compare(two, two, one, place), std::invalid_argument);
  EXPECT_TRUE(compare({}, {}, {}, place).ok);
}

TEST(CheckTest, MergeTakesTheWorseOfBoth) {
  const Check good{true, 1, 0.1, 5, "", 0.5}, bad{false, 0.5, 0.2, 7, "o[3]", 2}, also_bad{false, 0, 0, 0, "lse[0]"};
  Check check = good;
  check.merge(good);
  EXPECT_TRUE(check.ok);
  check.merge(bad);
  EXPECT_FALSE(check.ok);
  EXPECT_EQ(check.max_abs, 1);
  EXPECT_EQ(check.max_rel, 0.2);
  EXPECT_EQ(check.rows_checked, 7);
  EXPECT_EQ(check.max_used, 2);
  EXPECT_EQ(check.worst, "o[3]");
  check.merge(also_bad);
  EXPECT_EQ(check.worst, "o[3]");
  check.merge(good);
  EXPECT_FALSE(check.ok) << "a later good check must not hide an earlier bad one";
}

}  // namespace
}  // namespace attn
