// Runs the program as a user runs it: a short run of every task, its records, and the arguments that it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "common/testing/program.h"

namespace attn {
namespace {

using Json = nlohmann::ordered_json;
using test::Outcome;

class ConstantsCliTest : public test::CpuProgramTest {
 protected:
  ConstantsCliTest() : CpuProgramTest("proto4_constants") {}
};

TEST_F(ConstantsCliTest, EveryTaskLeavesRecordsThatTheSchemaAccepts) {
  const std::string host =
      "--axis "
      "task=compile,compile_one,memory,disk,archive,archive_create,archive_load,start_compile,start_disk,start_archive "
      "--axis kernel=naive --axis variants=2 --axis workers=1 ";
  Outcome outcome = run_line("--device cpu:threads=2 --budget 0.1 " + host);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  outcome = run_line(
      "--device cpu:threads=2 --budget 10 --axis task=run --axis kernel=tiled_vector --axis q_len=33 "
      "--axis q_heads=2 --axis head_dim=24 --axis block_r=16 --axis block_c=16 --axis causal=1 --axis alibi=1");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::set<std::string> tasks, claims;
  for (const Json& record : records("measurements.jsonl")) {
    EXPECT_TRUE(record["status"] == "ok" || record["reason"] == "budget spent") << record;
    tasks.insert(record["case"]["task"]);
    if (record["case"]["task"] == "run" && record["status"] == "ok") {
      EXPECT_GT(record["pipeline"]["code_bytes"], 100);
    }
  }
  EXPECT_EQ(tasks.size(), 11u);
  for (const Json& finding : records("findings.jsonl")) claims.insert(finding["data"]["hypothesis"]["id"]);
  EXPECT_TRUE(claims.contains("run_time")) << outcome.out;
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

TEST_F(ConstantsCliTest, ACaseIsResumedAndReplayed) {
  const std::string one =
      "--device cpu:threads=2 --budget 10 --axis task=compile --axis kernel=naive --axis dtype=f32 --axis variants=1 "
      "--axis workers=1 ";
  Outcome outcome = run_line(one);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(records("measurements.jsonl").size(), 1u) << outcome.out;
  const Json first = records("measurements.jsonl")[0];
  EXPECT_EQ(first["time"][0]["scope"], "host");
  EXPECT_EQ(first["values"]["variants"], 1);
  outcome = run_line(one + "--resume");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE((outcome.out + outcome.err).find("cases recorded 1, left 0"), std::string::npos) << outcome.err;
  outcome = run_line("--budget 10 --replay " + first["id"].get<std::string>());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("of the recorded median"), std::string::npos) << outcome.out;
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
