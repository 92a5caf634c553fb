// Each launch class of common/paged runs the plan that it is given, and makes no plan itself.
#include <gtest/gtest.h>

#include "common/paged/cascade.h"
#include "common/paged/decode.h"
#include "common/paged/prefill.h"
#include "common/testing/devices.h"
#include "common/testing/idle_device.h"

namespace attn {
namespace {

constexpr int64_t all_keys = 2 * 512;

DecodeConfig config_of(int64_t q_len) {
  return {.shape = {.batch = 2, .q_heads = 8, .kv_heads = 2, .q_len = q_len, .kv_len = 512, .head_dim = 64},
          .page_size = 16};
}

/// Tensors for a launch that reads and writes none of their memory.
DecodeTensors tensors() {
  alignas(16) static std::byte memory[16];
  static const int numbers[1] = {};
  return {.q = memory,
          .o = memory,
          .k = memory,
          .v = memory,
          .table = numbers,
          .lengths = numbers,
          .new_k = memory,
          .new_v = memory};
}

TEST(PagedLaunchTest, DecodingRunsItsPlan) {
  for (const bool join_last : {false, true}) {
    DecodeConfig config = config_of(2);
    config.join_last = join_last;
    for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
      test::expect_plan_runs(
          info, decode_plan(config, info, all_keys),
          [&](Device& device, PipelineCache& pipelines, const Plan& plan) {
            return DecodeLaunch(device, pipelines, config, plan);
          },
          [&](const DecodeLaunch& launch, CommandEncoder& encoder) { launch.encode(encoder, tensors()); });
    }
  }
}

/// Appending to a cache of 8 bits is a launch of its own, before the launch that attends.
TEST(PagedLaunchTest, AppendingTo8BitsRunsItsPlan) {
  DecodeConfig config = config_of(2);
  config.dtype = config.out_dtype = DType::bf16;
  config.cache_dtype = DType::e4m3;
  config.appends = true;
  config.rotary_dim = 32;
  DecodeConfig prompt = config;
  prompt.shape.q_len = 40;
  prompt.block_c = 0;
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    const Plan plan = decode_plan(config, info, all_keys);
    test::expect_plan_runs(
        info, plan,
        [&](Device& device, PipelineCache& pipelines, const Plan& given) {
          return DecodeLaunch(device, pipelines, config, given);
        },
        [&](const DecodeLaunch& launch, CommandEncoder& encoder) { launch.encode(encoder, tensors()); });
    test::expect_plan_runs(
        info, prefill_plan(prompt, info, 0, all_keys),
        [&](Device& device, PipelineCache& pipelines, const Plan& given) {
          return PrefillLaunch(device, pipelines, prompt, given, 64);
        },
        [&](const PrefillLaunch& launch, CommandEncoder& encoder) { launch.encode(encoder, tensors()); });
    ASSERT_EQ(plan.launches.size(), 2u);
    EXPECT_EQ(plan.launches[0].phase, "append");
    EXPECT_EQ(plan.launches[1].source.constants.at("APPENDS"), 0);
    EXPECT_EQ(plan.launches[1].source.constants.at("ROTARY_DIM"), 0);
  }
}

/// On cuda a grid has at most 65535 threadgroups in its second and in its third dimension.
TEST(PagedLaunchTest, ABatchThatNoGridHoldsIsRefused) {
  const DeviceInfo info = test::hopper();
  const auto reason = [&](int64_t batch, auto plan_of) {
    DecodeConfig config = config_of(40);
    config.shape.batch = batch;
    config.cache_dtype = DType::int8;
    return skip_reason(plan_of(config), info).value_or("");
  };
  const auto prompts = [&](DecodeConfig config) {
    config.dtype = config.out_dtype = DType::bf16;
    config.block_c = 0;
    return prefill_plan(config, info, 0, all_keys);
  };
  const auto appending = [&](DecodeConfig config) {
    config.cache_dtype = config.dtype;
    return append_plan(config, info);
  };
  EXPECT_EQ(reason(65535, appending), "");
  EXPECT_EQ(reason(65536, appending),
            "needs 40 x 65536 x 1 threadgroups, cuda:0 launches at most 2147483647 x 65535 x 65535");
  EXPECT_EQ(reason(65535, prompts), "");
  EXPECT_EQ(reason(65536, prompts),
            "needs 8 x 2 x 65536 threadgroups, cuda:0 launches at most 2147483647 x 65535 x 65535");
}

TEST(PagedLaunchTest, AppendingRunsItsPlan) {
  const DecodeConfig config = config_of(2);
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_plan_runs(
        info, append_plan(config, info),
        [&](Device& device, PipelineCache& pipelines, const Plan& plan) {
          return AppendLaunch(device, pipelines, config, plan);
        },
        [&](const AppendLaunch& launch, CommandEncoder& encoder) { launch.encode(encoder, tensors()); });
  }
}

TEST(PagedLaunchTest, ASharedPrefixRunsItsPlan) {
  const DecodeConfig config = config_of(1);
  const int64_t prefix = 256;
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_plan_runs(
        info, cascade_plan(config, info, all_keys, prefix),
        [&](Device& device, PipelineCache& pipelines, const Plan& plan) {
          return CascadeLaunch(device, pipelines, config, prefix, plan);
        },
        [&](const CascadeLaunch& launch, CommandEncoder& encoder) {
          launch.encode(encoder, tensors(), tensors().lengths);
        });
  }
}

TEST(PagedLaunchTest, APromptRunsItsPlan) {
  const double pairs = 1e5;
  const int64_t pages = 64;
  for (const DType cache_dtype : {DType::f32, DType::int8}) {
    DecodeConfig config = config_of(128);
    config.block_c = 0;
    config.cache_dtype = cache_dtype;
    for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
      test::expect_plan_runs(
          info, prefill_plan(config, info, pairs, all_keys),
          [&](Device& device, PipelineCache& pipelines, const Plan& plan) {
            return PrefillLaunch(device, pipelines, config, plan, pages);
          },
          [&](const PrefillLaunch& launch, CommandEncoder& encoder) { launch.encode(encoder, tensors()); });
    }
  }
}

}  // namespace
}  // namespace attn
