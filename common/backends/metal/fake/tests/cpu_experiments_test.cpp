// All experiments on the device `metal`, on a fake of Apple's Metal (fake.h): cases of the quick kind, with odd shapes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/testing/program.h"

namespace attn::test {

struct HostRun {
  const char* experiment;
  int cases;
  std::string axes;
};
void PrintTo(const HostRun& run, std::ostream* out) { *out << run.experiment; }

class MetalHostRuns : public ProgramTest, public testing::WithParamInterface<HostRun> {
 protected:
  MetalHostRuns() : ProgramTest("metal_experiments") {}
};

TEST_P(MetalHostRuns, AreRight) {
  const auto& [experiment, cases, axes] = GetParam();
  const Outcome outcome = run_line(fmt::format("{} --device metal --only verify{}", experiment, axes_of(axes)));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string expected = fmt::format("{} ok, 0 wrong, 0 skipped", cases);
  EXPECT_NE((outcome.out + outcome.err).find(expected), std::string::npos) << "not '" << expected << "'\n"
                                                                           << outcome.out << outcome.err;
  for (const Json& record : records("measurements.jsonl")) EXPECT_EQ(record["device"], "Fake GPU, 10 units");
}

INSTANTIATE_TEST_SUITE_P(
    Metal, MetalHostRuns,
    testing::Values(
        HostRun{"proto1_flash", 4,
                "batch=1 q_heads=3 kv_heads=1 q_len=19 kv_len=37 causal=1 layout=bhsd variant=naive,tuned block_r=16 "
                "block_c=16 head_dim=40 dtype=f32,bf16"},
        HostRun{"proto2_stitching", 6,
                "form=monolithic,switch,pointer,stitched,stitched_nolto,stitched_graph grain=element function=alibi "
                "batch=1 q_heads=2 kv_heads=1 q_len=19 kv_len=37 head_dim=40 causal=1 dtype=f16 layout=bhsd block_r=16 "
                "block_c=16"},
        HostRun{"proto3_paged", 2,
                "q_heads=6 kv_heads=2 batch=3 kv_len=70 head_dim=40 lengths=ragged cache_layout=nhd alibi=0 soft_cap=0 "
                "window_left=-1 causal=1 shared_pct=25 cascade=0 block_c=32 task=decode workers=4 append=none q_len=1 "
                "page_size=5 page_order=random reduce=last,launch dtype=f16 cache_dtype=f16"},
        HostRun{"proto4_constants", 4,
                "task=compile_one,memory,disk,archive kernel=tuned variants=2 workers=1 q_heads=1 q_len=37 head_dim=64 "
                "causal=1 dtype=f32"},
        HostRun{"proto5_codegen", 2,
                "work=attention generator=hand,compiler dtype=f32 head_dim=64 batch=1 heads=2 q_len=37 causal=1"},
        HostRun{"proto6_linear", 1,
                "batch=2 heads=1 q_len=37 head_dim=24 value_dim=40 layout=bhsd lengths=equal state=1 variant=phases "
                "scan=passes chunk=16 causal=1 gate=token normalised=1 feature=elu1 dtype=f16"},
        HostRun{"proto7_variants", 1,
                "batch=2 q_heads=3 kv_heads=1 q_len=21 kv_len=133 head_dim=40 layout=bhsd task=attention variant=tuned "
                "block_r=16 block_c=32 causal=1 dtype=f32 alibi=1 soft_cap=30 sinks=1 window_left=40"},
        HostRun{"proto8_extension", 4,
                "task=call path=direct,engine,c,copies op=flash from=none dtype=f32 q_heads=2 q_len=19 head_dim=64"}),
    [](const testing::TestParamInfo<HostRun>& test) { return test.param.experiment; });

}  // namespace attn::test
