// Runs the program as a user runs it.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/base/json.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class LinearCliTest : public test::CpuProgramTest {
 protected:
  LinearCliTest() : CpuProgramTest("proto6_linear") {}
};

const std::string small_shape =
    "--device cpu:threads=2" + test::few_samples +
    "--axis batch=2 --axis heads=2 --axis head_dim=24 --axis segments=0 "
    "--axis dtype=f32 --axis causal=1 --axis chunk=16 --axis feature=identity --axis normalised=0 ";

// The search doubles the length from 16 tokens on. Each probe leaves the records of both kernels. A resumed run does
// not measure the recorded cases again, even if it searches again because of an added length.
TEST_F(LinearCliTest, FindsTheCrossover) {
  const std::string line = small_shape +
                           "--axis variant=softmax,fused --axis scan=none --axis gate=none --axis lengths=equal "
                           "--axis q_len=64";
  const Outcome outcome = run_line(line);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::set<int> lengths;
  for (const auto& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    lengths.insert(record["case"]["q_len"].get<int>());
  }
  EXPECT_TRUE(lengths.contains(16));
  EXPECT_TRUE(lengths.contains(64));
  std::set<std::string> judged;
  for (const auto& finding : findings()) {
    const auto& data = finding["data"];
    judged.insert(data["hypothesis"]["id"]);
    if (data["hypothesis"]["id"] != "crossover_256") continue;
    EXPECT_NE(finding["content"].get<std::string>().find("flash_forward["), std::string::npos) << finding["content"];
    EXPECT_NE(finding["content"].get<std::string>().find("cosine"), std::string::npos) << finding["content"];
  }
  EXPECT_TRUE(judged.contains("crossover_256")) << outcome.out << outcome.err;
  EXPECT_TRUE(judged.contains("crossover_4096"));
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));

  const size_t before = records("measurements.jsonl").size();
  const Outcome again = run_line(line + ",100 --resume");  // no search tries 100
  ASSERT_EQ(again.status, 0) << again.err;
  std::set<std::string> cases;
  for (const auto& record : records("measurements.jsonl")) {
    EXPECT_TRUE(cases.insert(record["case"].dump()).second) << "measured twice: " << record["case"];
  }
  EXPECT_GE(records("measurements.jsonl").size(), before + 2);
}

TEST_F(LinearCliTest, SaysWhyACaseDoesNotRun) {
  const Outcome outcome = run_line(
      "--device cpu:threads=1 --dry-run --json --axis variant=fused,recurrent,softmax --axis causal=0 --axis "
      "gate=none,token "
      "--axis q_len=64 --axis normalised=1 --axis feature=identity,elu1 --axis value_dim=32 --axis head_dim=64");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* reason : {"with causal 0, gate must be none", "recurrent: causal must be 1", "can have either sign",
                             "value_dim must be equal to head_dim"}) {
    EXPECT_NE(outcome.out.find(reason), std::string::npos) << reason;
  }
}

}  // namespace
}  // namespace attn
