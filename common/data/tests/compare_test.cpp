#include "common/data/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace attn {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

Check check_one(double got, double want, Tolerance tolerance = {0.5, 0.25}) {
  return compare(std::vector{got}, std::vector{want}, tolerance, "x");
}

TEST(CompareTest, ToleranceIsAbsolutePlusRelativeToWant) {
  // 0.5 + 0.25 * 4 = 1.5, exactly representable: the edge itself passes.
  EXPECT_TRUE(check_one(5.5, 4).ok);
  EXPECT_TRUE(check_one(2.5, 4).ok);
  EXPECT_FALSE(check_one(std::nextafter(5.5, 6), 4).ok);
  EXPECT_FALSE(check_one(std::nextafter(2.5, 2), 4).ok);
  EXPECT_TRUE(check_one(-5.5, -4).ok);
  EXPECT_FALSE(check_one(4, -4).ok);
  EXPECT_FALSE(check_one(4, 2).ok) << "relative to want, not to got";
  EXPECT_TRUE(check_one(0.5, 0).ok);
  EXPECT_TRUE(check_one(1, 1, {0, 0}).ok);
}

TEST(CompareTest, NaNNeverPasses) {
  EXPECT_FALSE(check_one(nan_value, 1).ok);
  EXPECT_FALSE(check_one(1, nan_value).ok);
  EXPECT_FALSE(check_one(nan_value, nan_value).ok);
  EXPECT_FALSE(check_one(nan_value, infinity).ok);
  EXPECT_FALSE(check_one(nan_value, 1, {infinity, 0}).ok);
}

TEST(CompareTest, InfinitiesPassOnlyWhenEqual) {
  EXPECT_TRUE(check_one(infinity, infinity).ok);
  EXPECT_TRUE(check_one(-infinity, -infinity).ok);
  EXPECT_FALSE(check_one(-infinity, infinity).ok);
  EXPECT_FALSE(check_one(1, infinity).ok) << "an infinite tolerance must not excuse a finite value";
  EXPECT_FALSE(check_one(infinity, 1).ok);
}

TEST(CompareTest, TellsMaximaAndTheFirstFailure) {
  const std::vector<double> got = {1, 2.5, -1, 0.125};
  const std::vector<double> want = {1, 2, -4, 0};
  const Check check = compare(got, want, {0.01, 0.01}, "lse");
  EXPECT_FALSE(check.ok);
  EXPECT_EQ(check.max_abs, 3);
  EXPECT_EQ(check.max_rel, 0.75);  // of -1 for -4; want = 0 has no relative error
  EXPECT_EQ(check.worst, "lse[1]: got 2.5, want 2 (tolerance 0.03)");
  EXPECT_EQ(check.rows_checked, 0);
}

TEST(CompareTest, MaximaAreMeasuredForPassingElementsToo) {
  const Check check = check_one(4.5, 4);
  EXPECT_TRUE(check.ok);
  EXPECT_EQ(check.max_abs, 0.5);
  EXPECT_EQ(check.max_rel, 0.125);
  EXPECT_EQ(check.worst, "");
}

TEST(CompareTest, MaximaStayFinite) {
  const Check check = compare(std::vector{nan_value, infinity, 3.0}, std::vector{0.0, 1.0, 2.0}, {0, 0}, "o");
  EXPECT_EQ(check.max_abs, 1);
  EXPECT_EQ(check.max_rel, 0.5);
  EXPECT_EQ(check.worst, "o[0]: got nan, want 0 (tolerance 0)");
}

TEST(CompareTest, SizesMustAgree) {
  EXPECT_THROW(compare(std::vector{1.0}, std::vector{1.0, 2.0}, {1, 1}, "x"), std::invalid_argument);
  EXPECT_THROW(compare(std::vector{1.0, 2.0}, std::vector{1.0}, {1, 1}, "x"), std::invalid_argument);
  EXPECT_TRUE(compare({}, {}, {0, 0}, "x").ok);
}

TEST(CompareTest, TolerancesOfTheDtypes) {
  EXPECT_EQ(tolerance_for(DType::f32).atol, 1e-5);
  EXPECT_EQ(tolerance_for(DType::f32).rtol, 1e-4);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    EXPECT_EQ(tolerance_for(dtype).atol, 5e-3);
    EXPECT_EQ(tolerance_for(dtype).rtol, 1e-2);
  }
}

TEST(CheckTest, MergeTakesTheWorseOfBoth) {
  const Check good{true, 1, 0.1, 5, ""}, bad{false, 0.5, 0.2, 7, "o[3]"}, also_bad{false, 0, 0, 0, "lse[0]"};
  Check check = good;
  check.merge(good);
  EXPECT_TRUE(check.ok);
  check.merge(bad);
  EXPECT_FALSE(check.ok);
  EXPECT_EQ(check.max_abs, 1);
  EXPECT_EQ(check.max_rel, 0.2);
  EXPECT_EQ(check.rows_checked, 7);
  EXPECT_EQ(check.worst, "o[3]");
  check.merge(also_bad);
  EXPECT_EQ(check.worst, "o[3]");
  check.merge(good);
  EXPECT_FALSE(check.ok) << "a later good check must not hide an earlier bad one";
}

}  // namespace
}  // namespace attn
