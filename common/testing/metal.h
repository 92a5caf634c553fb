// Tests of Metal's kernels: an experiment runs cases on the emulated device, and its oracle checks the results.
#pragma once

#include <fmt/format.h>

#include <string>

#include "common/device/device.h"
#include "common/testing/program.h"

namespace attn::test {

class MetalProgramTest : public ProgramTest {
 protected:
  explicit MetalProgramTest(const std::string& program) : ProgramTest(program) {}
  void SetUp() override {
    if (!Device::is_built("metal")) GTEST_SKIP() << "this build has no metal device";
  }

  /// Expects that the run with these axes ("head_dim=40 causal=1") has `cases` cases, all right and none skipped.
  void expect_right(int cases, const std::string& axes) const {
    const Outcome outcome = run_line("--device metal:emulated --only verify" + axes_of(axes));
    EXPECT_EQ(outcome.status, 0) << axes << "\n" << outcome.err;
    const std::string expected = fmt::format("{} ok, 0 wrong, 0 skipped", cases);
    EXPECT_NE((outcome.out + outcome.err).find(expected), std::string::npos) << axes << ": not '" << expected << "'\n"
                                                                             << outcome.out << outcome.err;
  }
  /// Returns the text of --dry-run, with one line for each case.
  std::string dry_run(const std::string& axes) const {
    return run_shell("--device metal:emulated --dry-run" + axes_of(axes), "export COLUMNS=1000; ").out;
  }
};

}  // namespace attn::test
