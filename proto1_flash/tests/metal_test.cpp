// Metal's attention kernels, mostly on the emulated device.
#include "common/attention/flash.h"
#include "common/cases/study_layout.h"
#include "common/testing/devices.h"
#include "common/testing/metal_runs.h"

namespace attn::test {

const std::string metal_shape = "batch=2 q_heads=4 kv_heads=2 q_len=45 kv_len=83 variant=tuned ";

INSTANTIATE_TEST_SUITE_P(
    Metal, MetalRuns,
    testing::ValuesIn(runs_of(
        "proto1_flash", {{"EachType", 6,
                          "batch=1 q_heads=3 kv_heads=1 q_len=19 kv_len=37 causal=1 layout=bhsd variant=naive,tuned "
                          "block_r=16 block_c=16 head_dim=40 dtype=f32,f16,bf16"}})),
    run_name);

INSTANTIATE_TEST_SUITE_P(
    MetalFull, MetalRuns,
    testing::ValuesIn(runs_of(
        "proto1_flash",
        {{"QInThreadgroupMemory", 1,
          "batch=1 q_heads=2 kv_heads=1 q_len=11 kv_len=9 causal=1 layout=bshd variant=tuned head_dim=200 "
          "dtype=f32 block_r=16 block_c=16"},
         {"Tiles", 12, metal_shape + "layout=bhsd,bshd causal=0,1 block_r=16,32,64 block_c=16 head_dim=64 dtype=f16"},
         {"Dimensions", 6,
          metal_shape + "layout=bhsd,bshd causal=1 block_r=32 block_c=32 head_dim=8,96,128 dtype=bf16"},
         {"WideHeads", 2, metal_shape + "layout=bhsd,bshd causal=1 block_r=16 block_c=16 head_dim=136 dtype=f32"},
         {"DefaultTileOfEightKeys", 1, metal_shape + "layout=bshd causal=1 head_dim=256 dtype=f32"}})),
    run_name);

class MetalFlashTest : public MetalProgramTest {
 protected:
  MetalFlashTest() : MetalProgramTest("proto1_flash") {}
};

// `tuned` rests on the order of matrix elements in the lanes, and its tolerance for f32 on products that do not round
// to TF32. `naive` has no matrices.
TEST_F(MetalFlashTest, OtherGpusShowWhatKernelsRestOn) {
  for (const std::string gpu : {"other_fragments", "tf32"}) {
    for (const std::string variant : {"naive", "tuned"}) {
      const Outcome outcome =
          run_line("--device metal:emulated:gpu=" + gpu + " --only verify" +
                   axes_of("batch=1 q_heads=1 kv_heads=1 q_len=19 kv_len=37 causal=1 layout=bhsd block_r=16 block_c=16 "
                           "head_dim=40 dtype=f32 variant=" +
                           variant));
      const std::string expected = variant == "naive" ? "1 ok, 0 wrong" : "0 ok, 1 wrong";
      EXPECT_NE((outcome.out + outcome.err).find(expected), std::string::npos) << gpu << variant << outcome.err;
    }
  }
}

TEST(MetalTileTest, EachHeadDimHasATileThatFits) {
  const DeviceInfo device = metal();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      FlashConfig config{.variant = "tuned", .shape = {}, .dtype = dtype, .out_dtype = dtype};
      config.shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 100, .kv_len = 100, .head_dim = head_dim};
      choose_tile(config, device);
      const FlashOperation& flash = FlashOperation::of(device);
      const Launch launch = flash.kernel(config, device);
      EXPECT_EQ(flash.skip_reason(config, device).value_or(""), "") << "head_dim " << head_dim;
      EXPECT_LE(launch.threadgroup_bytes, device.threadgroup_memory_bytes) << "head_dim " << head_dim;
      EXPECT_EQ(launch.threadgroup_bytes % 16, 0u) << "head_dim " << head_dim;
      EXPECT_LE(launch.threads, 1024u) << "head_dim " << head_dim;
    }
  }
}

// `--dry-run` prints the threadgroup memory of the published study's kernel and of ours.
TEST_F(MetalFlashTest, BudgetsOfTheStudy) {
  EXPECT_EQ(study_flash_bytes(64, 16, 64), size_t{24} << 10);
  EXPECT_EQ(study_flash_bytes(64, 32, 64), size_t{32} << 10);
  EXPECT_EQ(study_flash_bytes(64, 16, 128), size_t{44} << 10);
  const std::string text = dry_run(
      "q_len=256 head_dim=64 dtype=f32 causal=0 layout=bhsd variant=tuned block_r=16 "
      "block_c=64,128");
  EXPECT_NE(text.find(" 24  17.08\n"), std::string::npos) << text;
}

}  // namespace attn::test
