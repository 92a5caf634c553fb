#include "common/base/text_table.h"

#include <gtest/gtest.h>

namespace attn {
namespace {

TEST(WrappedTest, BreaksAtSpacesAndIndents) {
  EXPECT_EQ(wrapped("one two three", 9, 2), "one two\n  three\n");
  EXPECT_EQ(wrapped("  a   b", 9, 2), "  a   b\n");
  EXPECT_EQ(wrapped("a_long_word x", 4, 0), "a_long_word\nx\n");
}

TEST(FittedTest, TheRestOfALineStandsBelowItsSecondColumn) {
  EXPECT_EQ(fitted("  --name N  one two three\n\n  plain words here\n", 18),
            "  --name N  one\n         two three\n\n  plain words here\n")
      << "at most half of a line may be blank";
  EXPECT_EQ(fitted("  -n  one two three\n  plain words here\n", 13),
            "  -n  one two\n      three\n  plain words\n  here\n");
}

TEST(FittedTest, UnbrokenJoinsTheLinesOfAParagraph) {
  EXPECT_EQ(unbroken("HEAD\n  one\n  two\n  0    done\n       well\n  1    wrong\n\nEND\n"),
            "HEAD\n  one two\n  0    done well\n  1    wrong\n\nEND\n");
}

TEST(FormatTest, UnitsFit) {
  EXPECT_EQ(format_seconds(1.5), "1.500 s");
  EXPECT_EQ(format_seconds(0.0123456), "12.35 ms");
  EXPECT_EQ(format_seconds(123.4e-6), "123.4 us");
  EXPECT_EQ(format_seconds(0.99999e-3), "1.000 ms");
  EXPECT_EQ(format_seconds(102e-9), "102.0 ns");
  EXPECT_EQ(format_ratio(1.069), "1.07x");
  EXPECT_EQ(format_ratio(0.0203), "0.020x");
  EXPECT_EQ(format_ratio(14.64), "14.6x");
}

}  // namespace
}  // namespace attn
