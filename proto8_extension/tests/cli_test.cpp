// The program as a user runs it: every path, its records, and the reason for a path that is missing.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "common/testing/program.h"

namespace attn {
namespace {

using Json = nlohmann::ordered_json;
using test::Outcome;

class ExtensionCliTest : public test::CpuProgramTest {
 protected:
  ExtensionCliTest() : CpuProgramTest("proto8_extension") {}
};

TEST_F(ExtensionCliTest, EveryPathIsMeasured) {
  // First calls that compile would take long to measure, so the second run only checks them.
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
    EXPECT_TRUE(paths.contains(path)) << path;
  EXPECT_EQ(sources, (std::set<std::string>{"none", "compiler", "disk", "archive"}));
  for (const Json& finding : findings()) claims.insert(finding["data"]["hypothesis"]["id"]);
  for (const char* claim : {"c_overhead", "concept_overhead", "allocations", "first_call_archive"}) {
    EXPECT_TRUE(claims.contains(claim)) << claim << outcome.out;
  }
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"})) << "skips and first calls too";
}

}  // namespace
}  // namespace attn
