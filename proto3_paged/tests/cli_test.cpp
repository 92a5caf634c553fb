// Runs the program as a user runs it.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/base/json.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::Outcome;

class PagedCliTest : public test::CpuProgramTest {
 protected:
  PagedCliTest() : CpuProgramTest("proto3_paged") {}
  Outcome verify(const std::string& axes) const {
    return run_line("--device cpu:threads=2 --only verify" + test::axes_of(axes));
  }
};

const std::string small_shape =
    "batch=3 kv_len=65 head_dim=24 q_heads=4 kv_heads=2 page_order=identity cache_layout=nhd lengths=ragged "
    "block_c=64 cascade=0 shared_pct=25 alibi=0 soft_cap=0 window_left=-1 reduce=last ";

TEST_F(PagedCliTest, RecordsSayHowTokensAreAppendedAndTheErrorOfACache) {
  for (const char* axes : {"task=decode q_len=1 page_size=16 workers=2 cache_dtype=f32 rotary_dim=8",
                           "task=decode q_len=1 page_size=16 workers=2 cache_dtype=bf16,e4m3,int8 append=none"}) {
    const Outcome outcome = verify(small_shape + axes);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  std::set<std::string> ways, types;
  for (const auto& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    EXPECT_EQ(record["values"]["workers"], 2);
    const std::string way = record["case"]["append"], type = record["case"]["cache_dtype"];
    EXPECT_EQ(record["case"]["rotary_dim"], way == "none" ? 0 : 8) << record;
    EXPECT_EQ(record["values"].contains("cache_error"), type == "e4m3" || type == "int8") << record;
    ways.insert(way);
    types.insert(type);
  }
  EXPECT_EQ(ways, (std::set<std::string>{"none", "fused", "chain"}));
  EXPECT_EQ(types, (std::set<std::string>{"f32", "bf16", "e4m3", "int8"}));
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

TEST_F(PagedCliTest, PrefillAndDecodeInOneRun) {
  const Outcome outcome =
      verify(small_shape + "q_len=1,40 page_size=0,16 task=decode,prefill cache_dtype=f32 append=none workers=0");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  int skipped = 0, prefilled = 0;
  for (const auto& record : records("measurements.jsonl")) {
    const bool decodes = record["case"]["task"] == "decode", many = record["case"]["q_len"] == 40;
    EXPECT_EQ(record["status"], decodes && many ? "skipped" : "ok") << record;
    skipped += decodes && many;
    prefilled += !decodes && record["values"].contains("threadgroup_bytes");
  }
  EXPECT_EQ(skipped, 2);
  EXPECT_EQ(prefilled, 4);
}

}  // namespace
}  // namespace attn
