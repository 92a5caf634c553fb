// Runs the program as a user runs it, with every value of the axis `path`. A path that this build lacks must be
// skipped with the reason.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/base/json.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class ExtensionCliTest : public test::CpuProgramTest {
 protected:
  ExtensionCliTest() : CpuProgramTest("proto8_extension") {}
};

TEST_F(ExtensionCliTest, EveryPathIsMeasured) {
  // A first call of an engine (`task=first_call`) that compiles its kernel takes long. So the second run verifies first
  // calls, and does not time them.
  const std::string shape = "--device cpu:threads=1 --axis q_len=16 ";
  const Outcome outcome = run_line(shape + test::few_samples + "--axis from=archive");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Outcome checked =
      run_line(shape + "--only verify --axis task=first_call --axis path=c --axis from=disk,compiler");
  ASSERT_EQ(checked.status, 0) << checked.err;
  std::set<std::string> paths, sources, claims;
  for (const Json& record : records("measurements.jsonl")) {
    const bool torch = record["case"]["path"] == "torch" && record["status"] == "skipped";
    if (torch) {
      EXPECT_NE(std::string(record["reason"]).find("no PyTorch"), std::string::npos) << record;
    }
    if (record["status"] != "ok") continue;
    paths.insert(record["case"]["path"]);
    sources.insert(record["case"]["from"]);
    if (record["case"]["task"] == "call") {
      EXPECT_GE(record["values"]["allocations"], 0) << record;
    }
  }
  for (const char* path : {"direct", "engine", "c", "dlpack", "concept", "copies"})
    EXPECT_TRUE(paths.contains(path)) << "no record of path " << path;
  EXPECT_EQ(sources, (std::set<std::string>{"none", "compiler", "disk", "archive"}));
  for (const Json& finding : findings()) claims.insert(finding["data"]["hypothesis"]["id"]);
  for (const char* claim : {"c_overhead", "concept_overhead", "allocations", "first_call_archive"}) {
    EXPECT_TRUE(claims.contains(claim)) << "no finding of the claim " << claim << ": " << outcome.out;
  }
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}))
      << "records of skipped cases and of first calls must fit the schema too";
}

}  // namespace
}  // namespace attn
