// Runs the program as a user runs it.
#include <gtest/gtest.h>

#include <set>
#include <string>

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

}  // namespace
}  // namespace attn
