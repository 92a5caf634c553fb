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

class PagedCliTest : public test::CpuProgramTest {
 protected:
  PagedCliTest() : CpuProgramTest("proto3_paged") {}
};

constexpr const char* small_shape =
    "--device cpu:threads=2 --only verify --axis batch=3 --axis kv_len=65 --axis head_dim=24 --axis q_heads=4 "
    "--axis kv_heads=2 --axis page_order=identity --axis cache_layout=nhd --axis workers=2 --axis lengths=ragged "
    "--axis block_c=64 --axis task=decode --axis q_len=1 --axis cascade=0 --axis shared_pct=25 "
    "--axis alibi=0 --axis soft_cap=0 "
    "--axis window_left=-1 ";

TEST_F(PagedCliTest, RecordsSayHowTokensAreAppended) {
  const Outcome outcome = run_line(std::string(small_shape) +
                                   "--axis page_size=16 --axis reduce=last --axis cache_dtype=f32 --axis rotary_dim=8");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::set<std::string> ways;
  for (const auto& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    EXPECT_EQ(record["values"]["workers"], 2);
    EXPECT_EQ(record["case"]["rotary_dim"], record["case"]["append"] == "none" ? 0 : 8) << record;
    ways.insert(record["case"]["append"]);
  }
  EXPECT_EQ(ways, (std::set<std::string>{"none", "fused", "chain"}));
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

TEST_F(PagedCliTest, PrefillAndDecodeInOneRun) {
  const Outcome outcome = run_line(
      "--device cpu:threads=2 --only verify --axis batch=2 --axis kv_len=70 --axis q_len=1,40 --axis head_dim=24 "
      "--axis q_heads=4 --axis kv_heads=2 --axis page_size=0,16 --axis task=decode,prefill --axis "
      "page_order=identity --axis cache_layout=nhd --axis workers=0 --axis reduce=last --axis cache_dtype=f32 "
      "--axis lengths=ragged --axis append=none --axis cascade=0 --axis shared_pct=25 --axis alibi=0 --axis "
      "soft_cap=0 --axis window_left=-1 --axis block_c=64");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  size_t skipped = 0, prefilled = 0;
  for (const auto& record : records("measurements.jsonl")) {
    const bool decodes = record["case"]["task"] == "decode", many = record["case"]["q_len"] == 40;
    EXPECT_EQ(record["status"], decodes && many ? "skipped" : "ok") << record;
    if (decodes && many) {
      EXPECT_EQ(record["reason"], "q_len 40: at most 16 with task decode");
    }
    skipped += decodes && many;
    prefilled += !decodes && record["values"].contains("threadgroup_bytes");
  }
  EXPECT_EQ(skipped, 2u);
  EXPECT_EQ(prefilled, 4u);
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

TEST_F(PagedCliTest, RecordsOf8BitCachesSayTheirError) {
  const Outcome outcome = run_line(std::string(small_shape) +
                                   "--axis page_size=16 --axis reduce=last --axis cache_dtype=bf16,e4m3,int8 "
                                   "--axis append=none");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const auto& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    EXPECT_EQ(record["values"].contains("cache_error"), record["case"]["cache_dtype"] != "bf16") << record;
  }
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

TEST_F(PagedCliTest, SkipsACacheThatDoesNotFit) {
  const Outcome outcome = run_line(
      "--axis task=decode --axis kv_len=16777216 --axis batch=4096 --axis page_size=16 --axis lengths=chat --quiet");
  EXPECT_EQ(outcome.status, 4) << outcome.err;
  for (const auto& record : records("measurements.jsonl")) EXPECT_EQ(record["status"], "skipped");
  EXPECT_NE(outcome.err.find("GB of the host's memory"), std::string::npos) << outcome.err;
}

TEST_F(PagedCliTest, RefusesInvalidArguments) {
  const std::pair<const char*, const char*> bad[] = {
      {"--axis page_size=-1", "page_size"},
      {"--axis page_size=4097", "4096"},
      {"--axis page_order=sorted", "reversed"},
      {"--axis cache_layout=ndh", "nhd"},
      {"--axis reduce=first", "launch"},
      {"--axis lengths=odd", "ragged"},
      {"--axis cache_dtype=f64", "int8"},
      {"--axis alibi=2", "1"},
      {"--axis soft_cap=-1", "1000"},
      {"--axis window_left=-2", "-1"},
      {"--axis dtype=e4m3", "bf16"},
      {"--axis append=copy", "chain"},
      {"--axis cascade=2", "cascade"},
      {"--axis shared_pct=100", "99"},
      {"--axis append=fused --axis rotary_dim=300", "rotary_dim"},
      {"--axis append=fused --axis rotary_dim=7", "rotary_dim"},
      {"--axis head_dim=12", "8"},
      {"--axis head_dim=264", "256"},
      {"--axis kv_heads=3 --axis q_heads=8", "does not divide q_heads=8"}};
  for (const auto& [arguments, says] : bad) {
    const Outcome outcome = run_line(std::string("--device cpu:threads=2 --dry-run ") + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << arguments << ": " << outcome.err;
    EXPECT_LE(std::ranges::count(outcome.err, '\n'), 2) << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
  }
}

}  // namespace
}  // namespace attn
