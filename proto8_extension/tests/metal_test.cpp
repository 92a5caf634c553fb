// The paths to Metal's kernels on the emulated device.
#include "common/testing/metal_runs.h"

namespace attn::test {

INSTANTIATE_TEST_SUITE_P(
    Metal, MetalRuns,
    testing::ValuesIn(runs_of(
        "proto8_extension",
        {{"FourPaths", 4,
          "task=call path=direct,engine,c,copies op=flash from=none dtype=f32 q_heads=2 q_len=19 head_dim=64"}})),
    run_name);

}  // namespace attn::test
