#include "common/base/shell.h"

#include <gtest/gtest.h>

#include "common/base/process.h"

namespace attn {
namespace {

TEST(ShellTest, ALabelledCommandIsBrokenBetweenArguments) {
  EXPECT_EQ(labelled_command("run:  ", {"a", "-b"}, 10), "run:  a -b\n");
  EXPECT_EQ(labelled_command("run:  ", {"a", "-b"}, 9), "run:\n  a -b\n");
  EXPECT_EQ(labelled_command("run:  ", {"program", "--one", "--two"}, 18), "run:\n  program --one \\\n    --two\n");
  EXPECT_EQ(labelled_command("run: ", {"a_long_word", "x"}, 6), "run:\n  a_long_word \\\n    x\n");
}

// A shell takes the lines as one command, even if an argument has blanks.
TEST(ShellTest, AShellTakesALabelledCommand) {
  const std::vector<std::string> arguments = {"printf", "[%s]", "one two", "it's", "three"};
  for (const size_t width : {5, 15, 20, 100}) {
    const std::string command = labelled_command(":;", arguments, width).substr(2);
    EXPECT_EQ(run_process({"sh", "-c", command}).output, "[one two][it's][three]") << command;
  }
}

}  // namespace
}  // namespace attn
