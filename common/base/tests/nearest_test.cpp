#include "common/base/nearest.h"

#include <gtest/gtest.h>

namespace attn {
namespace {

TEST(Nearest, FindsTheMisspeltWord) {
  const std::vector<std::string> commands = {"search", "show", "stats", "export"};
  for (const auto& [typed, meant] : {std::pair{"serch", "search"},
                                     {"saerch", "search"},
                                     {"expotr", "export"},
                                     {"sohw", "show"},
                                     {"stat", "stats"},
                                     {"x", ""},
                                     {"delete", ""},
                                     {"", ""}}) {
    EXPECT_EQ(nearest(typed, commands), meant) << typed;
  }
  EXPECT_EQ(nearest("x", {"search", "a"}), "");
  EXPECT_EQ(nearest(std::string(10'000, 'a'), {std::string(9'999, 'a')}), "");
  EXPECT_EQ(did_you_mean("serch", {"search"}), " (did you mean search?)");
  EXPECT_EQ(did_you_mean("x", {"search"}), "");
}

}  // namespace
}  // namespace attn
