// Metal's kernels on the emulated device: modifiers, rotary positions and copies of heads.
#include "common/testing/metal_runs.h"

namespace attn::test {

const std::string modified =
    "batch=2 q_heads=3 kv_heads=1 q_len=21 kv_len=133 head_dim=40 layout=bhsd task=attention variant=tuned block_r=16 "
    "block_c=32 causal=1 ";
const std::string alone = "batch=2 q_heads=3 kv_heads=1 q_len=21 kv_len=33 head_dim=40 layout=bshd ";

INSTANTIATE_TEST_SUITE_P(
    Metal, MetalRuns,
    testing::ValuesIn(runs_of("proto7_variants",
                              {{"ScoresAndSinks", 1, modified + "dtype=f32 alibi=1 soft_cap=30 sinks=1 window_left=40"},
                               {"BiasAndLengths", 1, modified + "dtype=f16 bias=hqk lengths=1"},
                               {"BlockSparse", 1, modified + "dtype=f32 block_sparse=50"},
                               {"FormsOfTheScore", 2, modified + "dtype=f32 alibi=1 score_by=run_time,noinline"},
                               {"Rope", 2, modified + "dtype=f16 rope=before,kernel rope_pairing=interleaved"},
                               {"RopeAlone", 1, alone + "task=rope dtype=bf16 rotary_dim=24 rope_angles=computed"},
                               {"CopiesAlone", 1, alone + "task=expand dtype=f16"}})),
    run_name);

}  // namespace attn::test
