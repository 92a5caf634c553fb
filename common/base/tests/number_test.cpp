#include "common/base/number.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "common/testing/messages.h"

namespace attn {
namespace {

constexpr const char* no_numbers[] = {"",    "nan",  "-nan", "inf", "-inf", "infinity", "1e999", "-1e999", "0x10", "+1",
                                      "1 s", "2.5s", " 1",   "1 ",  "1,5",  "1_000",    "1'000", "--1",    "-",    "x"};

TEST(NumberTest, OnlyADecimalNumberIsANumber) {
  for (const char* text : no_numbers) {
    EXPECT_FALSE(to_number<double>(text)) << text;
    EXPECT_FALSE(to_number<int>(text)) << text;
    EXPECT_FALSE(to_number<uint64_t>(text)) << text;
  }
  EXPECT_EQ(to_number<double>("-2.5e-3"), -2.5e-3);
  EXPECT_EQ(to_number<double>("-0"), 0.0);
  EXPECT_EQ(to_number<int>("-7"), -7);
  EXPECT_EQ(to_number<uint64_t>("18446744073709551615"), UINT64_MAX);
  EXPECT_FALSE(to_number<uint64_t>("18446744073709551616"));
  EXPECT_FALSE(to_number<uint64_t>("-1"));
  EXPECT_FALSE(to_number<int>("2.5"));
}

TEST(NumberTest, AnOptionSaysWhatIsAllowed) {
  for (const char* text : no_numbers) {
    test::expect_error<BadInput>([&] { parse_number("--seconds", text, 0.5, 60.0); }, {"--seconds", text, "0.5", "60"});
    test::expect_error<BadInput>([&] { parse_number("--rows", text, 1, 9); }, {"--rows", text, "1", "9"});
  }
  for (const char* text : {"0.5", "60", "6e1"}) EXPECT_NO_THROW(parse_number("-s", text, 0.5, 60.0)) << text;
  for (const char* text : {"0.4", "60.1", "-1"}) EXPECT_THROW(parse_number("-s", text, 0.5, 60.0), BadInput) << text;
}

}  // namespace
}  // namespace attn
