#include "common/base/shell.h"

#include <gtest/gtest.h>

#include "common/base/process.h"

namespace attn {
namespace {

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
