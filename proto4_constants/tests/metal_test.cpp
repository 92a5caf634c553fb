// Variants of Metal's kernels, with different function constants, on the emulated device.
#include "common/testing/metal.h"

namespace attn {
namespace {

class MetalConstantsTest : public test::MetalProgramTest {
 protected:
  MetalConstantsTest() : MetalProgramTest("proto4_constants") {}
};

TEST_F(MetalConstantsTest, AVariantIsRight) {
  expect_right(1, "task=compile_one kernel=tuned q_heads=1 q_len=37 head_dim=64 causal=1 dtype=f32");
}

class MetalFullConstantsTest : public MetalConstantsTest {};

TEST_F(MetalFullConstantsTest, CachesAndArchives) {
  expect_right(3, "task=memory,disk,archive kernel=tuned variants=5 workers=1 dtype=f32");
}

}  // namespace
}  // namespace attn
