// Metal's attention kernels on the emulated device, at odd sizes.
#include "common/testing/metal.h"

namespace attn {
namespace {

class MetalFlashTest : public test::MetalProgramTest {
 protected:
  MetalFlashTest() : MetalProgramTest("proto1_flash") {}
};

constexpr const char* odd_shape = "batch=1 q_heads=3 kv_heads=1 q_len=19 kv_len=37 ";

TEST_F(MetalFlashTest, EachType) {
  const std::string axes =
      std::string(odd_shape) + "causal=1 layout=bhsd variant=naive,tuned block_r=16 block_c=16 head_dim=40 ";
  for (const char* dtype : {"f32", "f16", "bf16"}) expect_right(2, axes + "dtype=" + dtype);
}

// Q in threadgroup memory, K and V in one buffer; more queries than keys.
TEST_F(MetalFlashTest, WideHeads) {
  expect_right(1,
               "batch=1 q_heads=2 kv_heads=1 q_len=11 kv_len=9 causal=1 layout=bshd variant=tuned head_dim=200 "
               "dtype=f32 block_r=16 block_c=8");
}

}  // namespace
}  // namespace attn
