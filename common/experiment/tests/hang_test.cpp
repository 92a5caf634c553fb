// Tests of cases that hang. A sweep must record these cases, and measure all other cases. A process that repeats
// measurements must be ended if it hangs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "common/testing/program.h"

namespace attn {
namespace {

class HangProgramsTest : public test::ProgramTest {
 protected:
  HangProgramsTest() : ProgramTest("hanging_experiment") {}
  /// Returns the last record of each case. The key is "n variant".
  std::map<std::string, Json> last_records() const {
    std::map<std::string, Json> found;
    for (const Json& record : records("measurements.jsonl")) {
      found[record["case"]["n"].dump() + " " + record["case"]["variant"].get<std::string>()] = record;
    }
    return found;
  }
};

TEST_F(HangProgramsTest, ACaseThatHangsIsOneFailedCase) {
  const test::Outcome outcome =
      run_line("--processes 1 --budget 1 --samples 6 --axis n=1,2 --axis variant=good,stops,loops");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto found = last_records();
  ASSERT_EQ(found.size(), 6u);
  for (const auto& [name, record] : found) {
    if (name.ends_with("good")) {
      EXPECT_EQ(record["status"], "ok") << record;
    } else {
      EXPECT_EQ(record["status"], "failed") << record;
      EXPECT_EQ(record["reason"], "device lost: the process of the run made no progress for 1.5 s, and was ended");
    }
  }
}

TEST_F(HangProgramsTest, AProcessThatMeasuresAgainAndHangsIsEnded) {
  const test::Outcome outcome = run_line("--processes 2 --budget 600 --samples 6 --axis variant=good,stops_in_part");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const auto& [name, record] : last_records()) EXPECT_EQ(record["status"], "ok") << record;
  EXPECT_NE(outcome.err.find("that repeat measurements made no progress for 1.5 s, and was ended"), std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace attn
