// Tests the paths to Metal's kernels on the emulated device.
#include "common/testing/metal.h"

namespace attn {
namespace {

class MetalExtensionTest : public test::MetalProgramTest {
 protected:
  MetalExtensionTest() : MetalProgramTest("proto8_extension") {}
};

TEST_F(MetalExtensionTest, FourPathsGiveTheRightOutput) {
  expect_right(4, "task=call path=direct,engine,c,copies op=flash from=none dtype=f32 q_heads=2 q_len=19 head_dim=64");
}

}  // namespace
}  // namespace attn
