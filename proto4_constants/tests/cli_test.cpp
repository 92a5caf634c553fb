// Runs the program as a user runs it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "common/base/json.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class ConstantsCliTest : public test::CpuProgramTest {
 protected:
  ConstantsCliTest() : CpuProgramTest("proto4_constants") {}
};

TEST_F(ConstantsCliTest, EveryTaskRuns) {
  for (const char* axes :
       {"task=compile,compile_one,memory,disk,archive,archive_create,archive_load,start_compile,start_disk,"
        "start_archive --axis kernel=naive --axis variants=2 --axis workers=1",
        "task=run --axis kernel=tiled_vector --axis q_len=33 --axis q_heads=2 --axis head_dim=24 --axis block_r=16 "
        "--axis block_c=16 --axis causal=1 --axis alibi=1"}) {
    const Outcome outcome = run_line(std::string("--device cpu:threads=2 --only verify --axis ") + axes);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  std::set<std::string> tasks;
  for (const Json& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    tasks.insert(record["case"]["task"]);
    if (record["case"]["task"] == "run") {
      EXPECT_GT(record["pipeline"]["code_bytes"], 100);
    }
  }
  EXPECT_EQ(tasks.size(), 11u);
  EXPECT_TRUE(schema_accepts({"measurements.jsonl"}));
}

TEST_F(ConstantsCliTest, CompilingIsTimedOnTheHost) {
  const Outcome outcome = run_line(
      "--device cpu:threads=2 --axis task=compile --axis kernel=naive --axis dtype=f32 --axis variants=1 "
      "--axis workers=1" +
      test::few_samples);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(records("measurements.jsonl").size(), 1u) << outcome.out;
  const Json record = records("measurements.jsonl")[0];
  EXPECT_EQ(record["time"][0]["scope"], "host");
  EXPECT_EQ(record["values"]["variants"], 1);
}

TEST_F(ConstantsCliTest, RefusesInOneLine) {
  for (const auto& [arguments, status] : {std::pair<std::string, int>{"--axis task=link", 2},
                                          {"--axis variants=0", 2},
                                          {"--axis run_time=dtype", 2},
                                          {"--device cpu:threads=0", 2},
                                          {"--axis pch=2", 2},
                                          {"--first-result cpu", 1}}) {
    const Outcome outcome = run_line(arguments);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
}

}  // namespace
}  // namespace attn
