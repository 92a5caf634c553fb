// Tests every experiment's program as a user runs it: a short run on the cpu, and the options that only print.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

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
  const char *claims, *narrowed;  // the claims that the run judges, and its axes
  /// Arguments that the program refuses, each with a word that the message has.
  std::vector<std::pair<const char*, const char*>> refused;
};

void PrintTo(const Run& run, std::ostream* out) { *out << run.program; }

class ProgramsTest : public test::CpuProgramTest, public testing::WithParamInterface<Run> {
 protected:
  ProgramsTest() : CpuProgramTest(GetParam().program) {}
};

TEST_P(ProgramsTest, AShortRunLeavesRecordsThatTheSchemaAccepts) {
  own_cache();  // so that the run compiles every kernel, and prints the warnings
  const Outcome outcome =
      run_line(std::string("--device cpu:threads=2 ") + few_samples + test::axes_of(GetParam().narrowed));
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
  const std::string loaded = records("findings.jsonl").at(0)["session"]["loaded"];
  EXPECT_EQ(outcome.out.find("on a loaded machine") != std::string::npos, !loaded.empty()) << loaded << outcome.out;
  EXPECT_EQ(fmt::format("{}", fmt::join(claims, " ")), GetParam().claims) << outcome.out;
  EXPECT_TRUE(schema_accepts({"measurements.jsonl", "findings.jsonl"}));
}

TEST_P(ProgramsTest, OptionsThatOnlyPrintWriteNoRecords) {
  for (const char* option : {"--list", "--dry-run", "--profile study --dry-run", "--help", "--version"}) {
    const Outcome outcome = run_line(option);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_FALSE(outcome.out.empty()) << option;
    EXPECT_EQ(text_of(path("measurements.jsonl")) + text_of(path("findings.jsonl")), "") << option;
  }
}

TEST_P(ProgramsTest, BadArgumentsGiveAShortMessageAndStatus2) {
  for (const auto& [arguments, says] : GetParam().refused) {
    const Outcome outcome = run_line(std::string("--device cpu:threads=2 --dry-run ") + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << arguments << ": " << outcome.err;
    EXPECT_LE(std::ranges::count(outcome.err, '\n'), 2) << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
  }
}

/// A run whose cases are all skipped.
struct Skipped {
  const char *program, *axes, *reason;
};
void PrintTo(const Skipped& run, std::ostream* out) { *out << run.program; }
class SkippingProgramsTest : public test::CpuProgramTest, public testing::WithParamInterface<Skipped> {
 protected:
  SkippingProgramsTest() : CpuProgramTest(GetParam().program) {}
};

TEST_P(SkippingProgramsTest, ACaseThatIsTooLargeIsSkipped) {
  const Outcome outcome = run_line(std::string("--device cpu:threads=2 --quiet") + test::axes_of(GetParam().axes));
  EXPECT_EQ(outcome.status, 4) << outcome.err;
  EXPECT_NE(outcome.err.find(GetParam().reason), std::string::npos) << outcome.err;
  const std::vector<Json> all = records("measurements.jsonl");
  EXPECT_FALSE(all.empty());
  for (const Json& record : all) EXPECT_EQ(record["status"], "skipped") << record;
}

INSTANTIATE_TEST_SUITE_P(
    Programs, SkippingProgramsTest,
    testing::Values(
        Skipped{"proto1_flash",
                "variant=tuned q_heads=1 dtype=f32 layout=bhsd causal=0 block_c=64 block_r=32 head_dim=8 q_len=2097152",
                "one launch would take"},
        Skipped{"proto3_paged", "task=decode kv_len=16777216 batch=4096 page_size=16 lengths=chat",
                "GB of the host's memory"},
        Skipped{"proto6_linear", "variant=phases scan=host batch=4096 heads=1024 q_len=16777216",
                " GB of the host's memory, which has "},
        Skipped{"proto7_variants", "task=attention q_heads=1 kv_heads=1 head_dim=8 bias=bhqk q_len=1048576",
                "tables of 4398046527744 bytes are not allowed; at most 2 GiB are"},
        Skipped{"proto7_variants", "task=attention q_heads=1 kv_heads=1 head_dim=8 block_sparse=25 q_len=16777216",
                "block_sparse with kv_len 16777216: at most 262144"}),
    [](const auto& test) { return fmt::format("{}_{}", test.param.program, test.index); });

INSTANTIATE_TEST_SUITE_P(
    Programs, ProgramsTest,
    testing::Values(
        Run{"proto1_flash",
            4,
            "best_tile causal",
            "q_len=64 q_heads=2 head_dim=32 variant=tuned dtype=f32 layout=bhsd causal=0,1 block_r=16,32 block_c=64",
            {{"--task", "a run starts its own processes"},
             {"--axis head_dim=0", "multiple of 8"},
             {"--axis head_dim=12", "multiple of 8"},
             {"--axis dtype=f8", "f32"},
             {"--axis causal=2", "causal"},
             {"--axis q_heads=8 --axis kv_heads=3", "does not divide"},
             {"--input missing.safetensors", "missing.safetensors"}}},
        Run{"proto2_stitching",
            5,
            "call_ns call_per_tile inlined_grain noinline stitch_or_constants stitched",
            "q_len=64 head_dim=32 q_heads=2 function=scale form=monolithic,stitched,noinline grain=element,tile",
            {{"--score-function nowhere.cpp", "nowhere.cpp"},
             {"--score-function ''", "empty"},
             {"--axis function=file", "alibi"},
             {"--axis form=jump", "monolithic"},
             {"--axis grain=page", "element"},
             {"--axis work=-1", "work"},
             {"--axis variant=naive", "mma_sync"},
             {"--axis q_heads=8 --axis kv_heads=3", "does not divide"}}},
        Run{"proto3_paged",
            4,
            "paging paging_10 paging_25 paging_9 reduce waste",
            "batch=3 kv_len=65 head_dim=24 q_heads=4 kv_heads=2 page_order=identity cache_layout=nhd workers=0 "
            "lengths=ragged block_c=64 task=decode q_len=1 cascade=0 shared_pct=25 alibi=0 soft_cap=0 window_left=-1 "
            "page_size=0,16 reduce=last,launch cache_dtype=f32 append=none",
            {{"--axis page_size=-1", "page_size"},
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
             {"--axis kv_heads=3 --axis q_heads=8", "does not divide q_heads=8"}}},
        Run{"proto4_constants",
            8,
            "cost run_time startup_100ms startup_1s",
            "task=run,compile kernel=tiled_vector dtype=f32 variants=1 workers=1 q_len=33 q_heads=2 head_dim=24 "
            "block_r=16 block_c=16 causal=1 alibi=1",
            {{"--axis task=link", "compile"},
             {"--axis variants=0", "variants"},
             {"--axis run_time=dtype", "causal"},
             {"--axis pch=2", "pch"}}},
        Run{"proto5_codegen",
            8,
            "generation inner_loop lines_compiler published slower viable",
            "heads=2 q_len=70 work=scores,softmax,values,modified generator=hand,compiler head_dim=64 causal=0",
            {{"--axis work=gemm", "work"},
             {"--axis generator=tvm", "generator"},
             {"--axis head_dim=100", "head_dim"},
             {"--axis causal=2", "causal"}}},
        Run{"proto6_linear",
            5,
            "host_scan_share",
            "batch=2 heads=2 head_dim=24 segments=0 dtype=f32 causal=1 chunk=16 feature=identity normalised=0 q_len=70 "
            "variant=phases,fused,recurrent scan=host,passes,lookback gate=token lengths=ragged",
            {{"--axis gate=row", "gate"},
             {"--axis chunk=24", "chunk"},
             {"--axis head_dim=100", "head_dim"},
             {"--axis feature=gelu", "feature"},
             {"--axis variant=naive", "variant"}}},
        Run{"proto7_variants",
            4,
            "alibi window",
            "q_len=65 head_dim=24 batch=2 q_heads=3 kv_heads=3 task=attention kv_heads_by=index alibi=0,1 "
            "window_left=-1,20 soft_cap=0 sinks=0 documents=0 prefix=0 bias=none lengths=0 rope=none causal=1 "
            "block_r=32 block_c=16 global_tokens=0 block_sparse=0 window_by=range lists=1",
            {{"--axis bias=hk", "bhqk"},
             {"--axis task=expand --axis q_heads=6 --axis kv_heads=4", "kv_heads=4 does not divide q_heads=6"},
             {"--axis window_left=-2", "window_left"},
             {"--axis rope=kernel --axis rotary_dim=20", "a multiple of 8"},
             {"--mask-function nowhere", "nowhere"},
             {"--axis mask_function=file-0123456789ab", "mask_function"}}},
        Run{"proto8_extension",
            6,
            "allocations c_overhead",
            "q_len=16 q_heads=1 task=call path=direct,engine,c",
            {{"--axis path=socket", "dlpack"}, {"--axis from=tape", "archive"}, {"--axis q_len=0", "q_len"}}}),
    [](const auto& test) { return std::string(test.param.program); });

}  // namespace
}  // namespace attn
