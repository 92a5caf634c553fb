// The program as a user meets it: a short run, its records, and what it refuses.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class VariantsCliTest : public test::ProgramTest {
 protected:
  VariantsCliTest() : ProgramTest("proto7_variants") {}
};

TEST_F(VariantsCliTest, AShortRunLeavesRecordsThatTheSchemaAccepts) {
  const Outcome outcome = run_line(
      "--device cpu:threads=2 --budget 4 --axis q_len=65 --axis head_dim=24 --axis batch=2 --axis q_heads=3 "
      "--axis alibi=0,1 --axis window_left=-1,20 --axis soft_cap=0 --axis sinks=0 --axis documents=0 --axis prefix=0 "
      "--axis bias=none --axis lengths=0 --axis causal=1 --axis block_r=32 --axis block_c=16 --axis global_tokens=0 "
      "--axis block_sparse=0 --axis window_by=range --axis lists=1");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  size_t cases = 0;
  for (const auto& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    // 2 x 3 heads of 65 queries: 65 * 66 / 2 causal pairs, of which a window of 21 keys leaves 21 a row but the first.
    const double pairs = record["case"]["window_left"] == -1 ? 65 * 66 / 2 : 21 * 22 / 2 + 44 * 21;
    EXPECT_EQ(record["work"]["flops"], 4. * 24 * 6 * pairs);
    ++cases;
  }
  EXPECT_EQ(cases, 4u);
  std::set<std::string> claims;
  for (const auto& finding : records("findings.jsonl")) claims.insert(finding["data"]["hypothesis"]["id"]);
  EXPECT_EQ(claims, (std::set<std::string>{"alibi", "window"})) << outcome.out;
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

TEST_F(VariantsCliTest, RefusesWhatMakesNoSense) {
  Outcome outcome = run_line("--axis prefix=5 --axis causal=0");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("prefix=5: without causal=1"), std::string::npos) << outcome.err;
  outcome = run_line("--axis bias=hk");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("bhqk"), std::string::npos) << outcome.err;
  // Masks: of what has none.
  const std::string one = "--axis q_len=65 --axis window_left=-1 --axis block_sparse=0 ";
  outcome = run_line(one + "--axis global_tokens=4 --axis window_by=range --axis lists=1");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("global_tokens=4: without window_left"), std::string::npos) << outcome.err;
  outcome = run_line(one + "--axis global_tokens=0 --axis window_by=mask --axis lists=1");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("window_by=mask: there is no window_left"), std::string::npos) << outcome.err;
  outcome = run_line(one + "--axis global_tokens=0 --axis window_by=range --axis lists=0");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("lists=0: only global_tokens"), std::string::npos) << outcome.err;
  outcome = run_line("--axis window_left=-2");
  EXPECT_EQ(outcome.status, 2);
}

}  // namespace
}  // namespace attn
