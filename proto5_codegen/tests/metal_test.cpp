// The hand-written kernels and the kernels from plain loops on the emulated Metal device.
#include "common/testing/metal_runs.h"

namespace attn::test {

INSTANTIATE_TEST_SUITE_P(
    Metal, MetalRuns,
    testing::ValuesIn(
        runs_of("proto5_codegen",
                {{"Attention", 2,
                  "work=attention generator=hand,compiler dtype=f32 head_dim=64 batch=1 heads=2 q_len=37 causal=1"},
                 {"Parts", 3,
                  "work=scores,softmax,values generator=compiler dtype=bf16 head_dim=64 batch=1 heads=2 q_len=37"}})),
    run_name);

INSTANTIATE_TEST_SUITE_P(
    MetalFull, MetalRuns,
    testing::ValuesIn(runs_of(
        "proto5_codegen",
        {{"ModifiedAttention", 4,
          "work=modified generator=hand,compiler dtype=f32,bf16 head_dim=128 batch=2 heads=2 q_len=130 causal=0"}})),
    run_name);

}  // namespace attn::test
