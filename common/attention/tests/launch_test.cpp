// AttentionLaunch and RopeLaunch run the plan that they are given, and do not plan anew. Another test checks which
// sizes of pages `wgmma` takes.
#include "common/attention/launch.h"

#include <gtest/gtest.h>

#include "common/attention/rope.h"
#include "common/testing/devices.h"
#include "common/testing/idle_device.h"

namespace attn {
namespace {

constexpr Strides dense{4 * 100 * 64, 100 * 64, 64};
alignas(16) std::byte memory[16];  // nothing is read or written there

TEST(LaunchTest, AttentionRunsItsPlan) {
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    for (const std::string& variant : FlashOperation::of(info).variants()) {
      if (variant == "wgmma") continue;
      SCOPED_TRACE(variant);
      FlashConfig config{
          .variant = variant,
          .shape = {.batch = 2, .q_heads = 4, .kv_heads = 4, .q_len = 100, .kv_len = 100, .head_dim = 64}};
      choose_tile(config, info);
      test::expect_plan_runs(
          info, attention_plan(config, info),
          [&](Device& device, PipelineCache& pipelines, const Plan& plan) {
            return AttentionLaunch(device, pipelines, config, plan);
          },
          [&](const AttentionLaunch& launch, CommandEncoder& encoder) {
            launch.encode(encoder, {.q = memory,
                                    .k = memory,
                                    .v = memory,
                                    .o = memory,
                                    .q_strides = dense,
                                    .k_strides = dense,
                                    .v_strides = dense,
                                    .o_strides = dense});
          });
    }
  }
}

TEST(LaunchTest, WgmmaSaysWhichPagesItTakes) {
  const auto reason = [](int64_t block_r, int64_t page_size) {
    const FlashConfig config{.variant = "wgmma",
                             .shape = {.batch = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 64},
                             .dtype = DType::bf16,
                             .block_r = block_r,
                             .block_c = 64,
                             .page_size = page_size};
    return FlashOperation::of(test::hopper()).skip_reason(config, test::hopper()).value_or("");
  };
  EXPECT_EQ(reason(128, 16), "");
  EXPECT_EQ(reason(256, 64), "");
  EXPECT_TRUE(reason(256, 16).starts_with("page_size=16: "));
  EXPECT_TRUE(reason(128, 24).starts_with("page_size=24: "));
}

TEST(LaunchTest, RopeRunsItsPlan) {
  const RopeConfig config{.head_dim = 64, .rotary_dim = 64};
  const RopeShape shape{.batch = 2, .q_heads = 4, .kv_heads = 4, .rows = 100};
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_plan_runs(
        info, rope_plan(config, shape, info),
        [&](Device& device, PipelineCache& pipelines, const Plan& plan) {
          return RopeLaunch(device, pipelines, config, shape, plan);
        },
        [&](const RopeLaunch& launch, CommandEncoder& encoder) {
          launch.encode(encoder, {.q = memory,
                                  .k = memory,
                                  .q_out = memory,
                                  .k_out = memory,
                                  .q_strides = dense,
                                  .k_strides = dense,
                                  .q_out_strides = dense,
                                  .k_out_strides = dense});
        });
  }
}

}  // namespace
}  // namespace attn
