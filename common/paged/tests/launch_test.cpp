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

/// Expects that each device's launch of Launch(device, pipelines, config, plan, rest...) runs plan_of(device).
template <typename Launch, typename PlanOf, typename... Rest>
void expect_runs(const DecodeConfig& config, const PlanOf& plan_of, const Rest&... rest) {
  for (const DeviceInfo& info : {test::avx2(), test::ampere()}) {
    test::expect_plan_runs(
        info, plan_of(info),
        [&](Device& device, PipelineCache& pipelines, const Plan& plan) {
          return Launch(device, pipelines, config, plan, rest...);
        },
        [&](const Launch& launch, CommandEncoder& encoder) { launch.encode(encoder, tensors()); });
  }
}

TEST(PagedLaunchTest, DecodingAndAppendingRunTheirPlans) {
  for (const bool join_last : {false, true}) {
    DecodeConfig config = config_of(2);
    config.join_last = join_last;
    expect_runs<DecodeLaunch>(config, [&](const DeviceInfo& info) { return decode_plan(config, info, all_keys); });
  }
  const DecodeConfig config = config_of(2);
  expect_runs<AppendLaunch>(config, [&](const DeviceInfo& info) { return append_plan(config, info); });
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
  expect_runs<DecodeLaunch>(config, [&](const DeviceInfo& info) {
    const Plan plan = decode_plan(config, info, all_keys);
    EXPECT_EQ(plan.launches.size(), 2u);
    EXPECT_EQ(plan.launches.at(0).phase, "append");
    EXPECT_EQ(plan.launches.at(1).source.constants.at("APPENDS"), 0);
    EXPECT_EQ(plan.launches.at(1).source.constants.at("ROTARY_DIM"), 0);
    return plan;
  });
  expect_runs<PrefillLaunch>(
      prompt, [&](const DeviceInfo& info) { return prefill_plan(prompt, info, 0, all_keys); }, 64);
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
  EXPECT_TRUE(reason(65536, appending).starts_with("needs 40 x 65536 x 1 threadgroups"));
  EXPECT_EQ(reason(65535, prompts), "");
  EXPECT_TRUE(reason(65536, prompts).starts_with("needs 8 x 2 x 65536 threadgroups"));
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
  for (const DType cache_dtype : {DType::f32, DType::int8}) {
    DecodeConfig config = config_of(128);
    config.block_c = 0;
    config.cache_dtype = cache_dtype;
    expect_runs<PrefillLaunch>(
        config, [&](const DeviceInfo& info) { return prefill_plan(config, info, 1e5, all_keys); }, 64);
  }
}

}  // namespace
}  // namespace attn
