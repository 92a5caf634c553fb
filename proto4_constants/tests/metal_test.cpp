// Variants of Metal's kernels, with different function constants, on the emulated device.
#include "common/testing/metal_runs.h"

namespace attn::test {

INSTANTIATE_TEST_SUITE_P(
    Metal, MetalRuns,
    testing::ValuesIn(runs_of("proto4_constants",
                              {{"AVariant", 1,
                                "task=compile_one kernel=tuned q_heads=1 q_len=37 head_dim=64 causal=1 dtype=f32"}})),
    run_name);

INSTANTIATE_TEST_SUITE_P(
    MetalFull, MetalRuns,
    testing::ValuesIn(runs_of("proto4_constants",
                              {{"CachesAndArchives", 3,
                                "task=memory,disk,archive kernel=tuned variants=5 workers=1 dtype=f32"}})),
    run_name);

}  // namespace attn::test
