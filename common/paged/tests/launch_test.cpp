// Each launch class over a cache runs the plan that it is given, and makes no plan itself.
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
