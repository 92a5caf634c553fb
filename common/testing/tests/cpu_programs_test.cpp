// Tests every experiment's program as a user runs it: a short run on the cpu, and the options that only print.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <ostream>
#include <set>
#include <string>

#include "common/base/json.h"
#include "common/testing/program.h"

namespace attn {
namespace {

using test::few_samples;
using test::Outcome;

/// A short run of a program.
struct Run {
  const char* program;
  size_t cases;                   // that the run records
  const char *claims, *narrowed;  // the claims that the run judges, and its options
};

void PrintTo(const Run& run, std::ostream* out) { *out << run.program; }

class ProgramsTest : public test::CpuProgramTest, public testing::WithParamInterface<Run> {
 protected:
  ProgramsTest() : CpuProgramTest(GetParam().program) {}
};

TEST_P(ProgramsTest, AShortRunLeavesRecordsThatTheSchemaAccepts) {
  own_cache();  // so that the run compiles every kernel, and prints the warnings
  const Outcome outcome = run_line(std::string("--device cpu:threads=2 ") + few_samples + GetParam().narrowed);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err.find("warning"), std::string::npos) << outcome.err;
  std::set<std::string> cases, claims;
  for (const Json& record : records("measurements.jsonl")) {
    EXPECT_EQ(record["status"], "ok") << record;
    EXPECT_TRUE(record["check"]["ok"]) << record;
    EXPECT_FALSE(record["time"].empty()) << record;
    EXPECT_TRUE(cases.insert(record["case"].dump()).second) << "recorded twice: " << record["case"];
  }
  EXPECT_EQ(cases.size(), GetParam().cases);
  for (const Json& finding : findings()) claims.insert(finding["data"]["hypothesis"]["id"]);
  EXPECT_EQ(fmt::format("{}", fmt::join(claims, " ")), GetParam().claims) << outcome.out;
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

TEST_P(ProgramsTest, OptionsThatOnlyPrintWriteNoRecords) {
  for (const char* option : {"--list", "--dry-run", "--help", "--version"}) {
    const Outcome outcome = run({option});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_FALSE(outcome.out.empty()) << option;
    EXPECT_EQ(text_of(path("measurements.jsonl")) + text_of(path("findings.jsonl")), "") << option;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Programs, ProgramsTest,
    testing::Values(Run{"proto1_flash", 4, "best_tile causal",
                        "--axis q_len=64 --axis q_heads=2 --axis head_dim=32 --axis variant=tuned --axis dtype=f32 "
                        "--axis layout=bhsd --axis causal=0,1 --axis block_r=16,32 --axis block_c=64"},
                    Run{"proto2_stitching", 5,
                        "call_ns call_per_tile inlined_grain noinline stitch_or_constants stitched",
                        "--axis q_len=64 --axis head_dim=32 --axis q_heads=2 --axis function=scale "
                        "--axis form=monolithic,stitched,noinline --axis grain=element,tile"},
                    Run{"proto3_paged", 4, "paging paging_10 paging_25 paging_9 reduce waste",
                        "--axis batch=3 --axis kv_len=65 --axis head_dim=24 --axis q_heads=4 --axis kv_heads=2 --axis "
                        "page_order=identity --axis cache_layout=nhd --axis workers=0 --axis lengths=ragged --axis "
                        "block_c=64 --axis task=decode --axis q_len=1 --axis cascade=0 --axis shared_pct=25 --axis "
                        "alibi=0 --axis soft_cap=0 --axis window_left=-1 --axis page_size=0,16 --axis "
                        "reduce=last,launch --axis cache_dtype=f32 --axis append=none"},
                    Run{"proto4_constants", 8, "cost run_time startup_100ms startup_1s",
                        "--axis task=run,compile --axis kernel=tiled_vector --axis dtype=f32 --axis variants=1 --axis "
                        "workers=1 --axis q_len=33 --axis q_heads=2 --axis head_dim=24 --axis block_r=16 --axis "
                        "block_c=16 --axis causal=1 --axis alibi=1"},
                    Run{"proto5_codegen", 8, "generation inner_loop lines_compiler published slower viable",
                        "--axis heads=2 --axis q_len=70 --axis work=scores,softmax,values,modified --axis "
                        "generator=hand,compiler --axis head_dim=64 --axis causal=0"},
                    Run{"proto6_linear", 5, "host_scan_share",
                        "--axis batch=2 --axis heads=2 --axis head_dim=24 --axis segments=0 --axis dtype=f32 --axis "
                        "causal=1 --axis chunk=16 --axis feature=identity --axis normalised=0 --axis q_len=70 --axis "
                        "variant=phases,fused,recurrent --axis scan=host,passes,lookback --axis gate=token --axis "
                        "lengths=ragged"},
                    Run{"proto7_variants", 4, "alibi window",
                        "--axis q_len=65 --axis head_dim=24 --axis batch=2 --axis q_heads=3 --axis kv_heads=3 --axis "
                        "task=attention --axis kv_heads_by=index --axis alibi=0,1 --axis window_left=-1,20 --axis "
                        "soft_cap=0 --axis sinks=0 --axis documents=0 --axis prefix=0 --axis bias=none --axis "
                        "lengths=0 --axis rope=none --axis causal=1 --axis block_r=32 --axis block_c=16 --axis "
                        "global_tokens=0 --axis block_sparse=0 --axis window_by=range --axis lists=1"},
                    Run{"proto8_extension", 6, "allocations c_overhead",
                        "--axis q_len=16 --axis q_heads=1 --axis task=call --axis path=direct,engine,c"}),
    [](const auto& test) { return std::string(test.param.program); });

}  // namespace
}  // namespace attn
