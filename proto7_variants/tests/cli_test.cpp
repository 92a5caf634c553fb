// The program as a user meets it: a short run, its records, and what it refuses.
#include <gtest/gtest.h>

#include <map>
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
      "--axis kv_heads=3 --axis task=attention --axis kv_heads_by=index "
      "--axis alibi=0,1 --axis window_left=-1,20 --axis soft_cap=0 --axis sinks=0 --axis documents=0 --axis prefix=0 "
      "--axis bias=none --axis lengths=0 --axis causal=1 --axis block_r=32 --axis block_c=16");
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

TEST_F(VariantsCliTest, SharedHeadsByIndexByCopyAndTheCopyAlone) {
  const std::string shape =
      "--device cpu:threads=2 --budget 3 --axis q_len=65 --axis head_dim=24 --axis batch=2 --axis q_heads=6 "
      "--axis kv_heads=2 --axis causal=1 --axis dtype=f32 --axis out_dtype=f32 --axis variant=tuned "
      "--axis layout=bhsd,bshd --axis kv_heads_by=index,copy --axis alibi=0 --axis soft_cap=0 --axis sinks=0 "
      "--axis documents=0 --axis prefix=0 --axis bias=none --axis lengths=0 --axis window_left=-1 "
      "--axis task=attention,expand";
  const Outcome outcome = run_line(shape);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::map<std::string, int> cases;
  for (const auto& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    const std::string by = record["case"]["kv_heads_by"];
    const bool alone = record["case"]["task"] == "expand";
    ++cases[alone ? "expand" : by];
    // Q and O of 6 heads and lse; K and V of 2 heads, or of 2, of 6, and of 6 again.
    const double rows = 2 * 65 * 24 * 4, copies = 2 * (2 + 6) * rows;
    EXPECT_EQ(record["work"]["bytes"], alone           ? copies
                                       : by == "index" ? 2 * (6 + 2) * rows + 6 * 2 * 65 * 4
                                                       : 2 * (6 + 6) * rows + 6 * 2 * 65 * 4 + copies);
    if (by == "copy" && !alone) {
      ASSERT_EQ(record["phases"].size(), 2u);
      EXPECT_EQ(record["phases"][0]["phase"], "expand");
      EXPECT_EQ(record["phases"][1]["phase"], "attention");
    }
    EXPECT_EQ(record["case"]["q_len"], alone ? 0 : 65);
  }
  EXPECT_EQ(cases, (std::map<std::string, int>{{"index", 2}, {"copy", 2}, {"expand", 2}}));
  std::map<std::string, int> claims;
  for (const auto& finding : records("findings.jsonl")) ++claims[finding["data"]["hypothesis"]["id"]];
  EXPECT_EQ(claims, (std::map<std::string, int>{{"gqa_copy", 2}, {"expand_share", 2}})) << outcome.out;
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

TEST_F(VariantsCliTest, RefusesWhatMakesNoSense) {
  Outcome outcome = run_line("--axis prefix=5 --axis causal=0");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("prefix=5: without causal=1"), std::string::npos) << outcome.err;
  outcome = run_line("--axis bias=hk");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("bhqk"), std::string::npos) << outcome.err;
  outcome = run_line("--axis task=expand --axis q_heads=6 --axis kv_heads=4");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("kv_heads=4 does not divide q_heads=6"), std::string::npos) << outcome.err;
  outcome = run_line("--axis window_left=-2");
  EXPECT_EQ(outcome.status, 2);
}

}  // namespace
}  // namespace attn
