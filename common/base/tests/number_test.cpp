#include "common/base/number.h"

#include <gtest/gtest.h>

#include <cstdint>

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
  const auto message = [](auto parse) -> std::string {
    try {
      parse();
    } catch (const BadInput& error) {
      return error.what();
    }
    return "";
  };
  for (const char* text : no_numbers) {
    EXPECT_EQ(message([&] { parse_number("--seconds", text, 0.5, 60.0); }),
              fmt::format("--seconds {}: not allowed; a number from 0.5 to 60", text));
    EXPECT_EQ(message([&] { parse_number("--rows", text, 1, 9); }),
              fmt::format("--rows {}: not allowed; an integer from 1 to 9", text));
  }
  for (const char* text : {"0.5", "60", "6e1"}) EXPECT_EQ(message([&] { parse_number("-s", text, 0.5, 60.0); }), "");
  for (const char* text : {"0.4", "60.1", "-1"}) EXPECT_NE(message([&] { parse_number("-s", text, 0.5, 60.0); }), "");
}

}  // namespace
}  // namespace attn
