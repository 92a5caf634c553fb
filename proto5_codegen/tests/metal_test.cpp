// Tests the hand-written kernels and the kernels from plain loops on the emulated Metal device.
#include "common/testing/metal.h"

namespace attn {
namespace {

class MetalCodegenTest : public test::MetalProgramTest {
 protected:
  MetalCodegenTest() : MetalProgramTest("proto5_codegen") {}
};

TEST_F(MetalCodegenTest, KernelsByHandAndFromPlainLoopsAreRight) {
  expect_right(2, "work=attention generator=hand,compiler dtype=f32 head_dim=64 batch=1 heads=2 q_len=37 causal=1");
  expect_right(3, "work=scores,softmax,values generator=compiler dtype=bf16 head_dim=64 batch=1 heads=2 q_len=37");
}

class MetalFullCodegenTest : public MetalCodegenTest {};

TEST_F(MetalFullCodegenTest, ModifiedAttentionIsRight) {
  expect_right(4,
               "work=modified generator=hand,compiler dtype=f32,bf16 head_dim=128 batch=2 heads=2 q_len=130 causal=0");
}

}  // namespace
}  // namespace attn
