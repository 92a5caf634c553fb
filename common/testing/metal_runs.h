// A table of runs on the emulated Metal device. Included by one file of a test binary.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "common/testing/metal.h"

namespace attn::test {

/// A run that must have `cases` cases, all right and none skipped, with these values of axes ("head_dim=40 causal=1").
struct MetalRun {
  const char* name;
  int cases;
  std::string axes, program = "";
};
inline std::vector<MetalRun> runs_of(const std::string& program, std::vector<MetalRun> runs) {
  for (MetalRun& run : runs) run.program = program;
  return runs;
}
inline void PrintTo(const MetalRun& run, std::ostream* out) { *out << run.name; }

/// The file instantiates the suite as Metal, and as MetalFull for slow runs.
class MetalRuns : public MetalProgramTest, public testing::WithParamInterface<MetalRun> {
 protected:
  MetalRuns() : MetalProgramTest(GetParam().program) {}
};
TEST_P(MetalRuns, AreRight) { expect_right(GetParam().cases, GetParam().axes); }
inline std::string run_name(const testing::TestParamInfo<MetalRun>& test) { return test.param.name; }

}  // namespace attn::test
