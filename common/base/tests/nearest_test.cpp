#include "common/base/nearest.h"

#include <gtest/gtest.h>

namespace attn {
namespace {

TEST(Nearest, FindsTheMisspeltWord) {
  const std::vector<std::string> commands = {"search", "show", "stats", "export"};
  EXPECT_EQ(nearest("serch", commands), "search");
  EXPECT_EQ(nearest("saerch", commands), "search");
  EXPECT_EQ(nearest("expotr", commands), "export");
  EXPECT_EQ(nearest("sohw", commands), "show");
  EXPECT_EQ(nearest("stat", commands), "stats");
}

TEST(Nearest, FindsNothingForAnotherWord) {
  EXPECT_EQ(nearest("x", {"search", "a"}), "");
  EXPECT_EQ(nearest("delete", {"search", "show"}), "");
  EXPECT_EQ(nearest("", {"a"}), "");
  EXPECT_EQ(nearest(std::string(10'000, 'a'), {std::string(9'999, 'a')}), "");
}

TEST(Nearest, IsASuggestion) {
  EXPECT_EQ(did_you_mean("serch", {"search"}), " (did you mean search?)");
  EXPECT_EQ(did_you_mean("x", {"search"}), "");
}

}  // namespace
}  // namespace attn
