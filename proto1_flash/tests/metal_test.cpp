// Metal's attention kernels on the emulated device, at odd sizes.
#include "common/testing/metal.h"

#include "common/attention/flash.h"
#include "common/testing/devices.h"

namespace attn {
namespace {

class MetalFlashTest : public test::MetalProgramTest {
 protected:
  MetalFlashTest() : MetalProgramTest("proto1_flash") {}
};

// Each head_dim and type has a tile that fits 32 KB of threadgroup memory, 1024 threads and the registers.
TEST(MetalTileTest, EachHeadDimHasATileThatFits) {
  const DeviceInfo device = test::metal();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      FlashConfig config{.variant = "tuned", .shape = {}, .dtype = dtype, .out_dtype = dtype};
      config.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 100, .kv_len = 100, .head_dim = head_dim};
      choose_tile(config, device);
      const FlashOperation& flash = FlashOperation::of(device);
      const Launch launch = flash.kernel(config, device);
      EXPECT_EQ(flash.skip_reason(config, device).value_or(""), "") << head_dim;
      EXPECT_LE(launch.threadgroup_bytes, device.threadgroup_memory_bytes) << head_dim;
      EXPECT_EQ(launch.threadgroup_bytes % 16, 0u) << head_dim;
      EXPECT_LE(launch.threads, 1024u) << head_dim;
    }
  }
}

constexpr const char* odd_shape = "batch=1 q_heads=3 kv_heads=1 q_len=19 kv_len=37 ";

TEST_F(MetalFlashTest, EachType) {
  const std::string axes =
      std::string(odd_shape) + "causal=1 layout=bhsd variant=naive,tuned block_r=16 block_c=16 head_dim=40 ";
  for (const char* dtype : {"f32", "f16", "bf16"}) expect_right(2, axes + "dtype=" + dtype);
}

// Q is in threadgroup memory. K and V share one buffer. There are more queries than keys.
TEST_F(MetalFlashTest, WideHeads) {
  expect_right(1,
               "batch=1 q_heads=2 kv_heads=1 q_len=11 kv_len=9 causal=1 layout=bshd variant=tuned head_dim=200 "
               "dtype=f32 block_r=16 block_c=16");
}

}  // namespace
}  // namespace attn
