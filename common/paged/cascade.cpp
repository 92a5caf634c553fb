#include "common/paged/cascade.h"

#include <fmt/format.h>

#include <utility>

#include "common/attention/flash.h"
#include "common/base/error.h"
#include "common/paged/kernels/merge.h"

namespace attn {
namespace {

/// Returns the configuration of the launch over the prefix: one sequence has the queries of all sequences, and each
/// query sees every key of the prefix.
DecodeConfig prefix_config(DecodeConfig config, int64_t prefix) {
  config.shape.q_len = std::exchange(config.shape.batch, 1);
  config.shape.kv_len = prefix;
  config.shape.causal = false;
  config.out_dtype = DType::f32;
  return config;
}

DecodeConfig own_config(DecodeConfig config, int64_t prefix) {
  config.shape.kv_len -= prefix;
  config.out_dtype = DType::f32;
  return config;
}

std::string why_unable(const DecodeConfig& config, int64_t prefix) {
  if (config.page_size == 0) return "page_size 0: only a paged cache has pages that sequences share";
  if (config.shape.q_len != 1) return fmt::format("q_len {}: over a shared prefix q_len must be 1", config.shape.q_len);
  if (config.appends) return "over a shared prefix no launch appends tokens";
  if (prefix <= 0 || prefix % config.page_size != 0 || prefix >= config.shape.kv_len) {
    return fmt::format(
        "a prefix of {} tokens: it must be whole pages of {}, at least one page, and fewer than {} tokens", prefix,
        config.page_size, config.shape.kv_len);
  }
  return {};
}

Launch merge_launch(const DecodeConfig& config, const DeviceInfo& device) {
  const AttentionShape& shape = config.shape;
  Launch launch;
  launch.phase = "merge";
  launch.source.path = device.operations->kernel_file("common/paged/kernels/merge");
  launch.source.entry = "merge";
  launch.source.constants = {{"HEAD_DIM", shape.head_dim}, {"OUT_TYPE", element_type(config.out_dtype)}};
  launch.grid = {static_cast<uint32_t>(shape.q_heads), static_cast<uint32_t>(shape.batch)};
  device.operations->decode->complete_merge(launch, config, device);
  return launch;
}

}  // namespace

Plan cascade_plan(const DecodeConfig& config, const DeviceInfo& device, int64_t keys, int64_t prefix) {
  if (std::string reason = why_unable(config, prefix); !reason.empty()) return {.unable = std::move(reason)};
  Plan plan = decode_plan(prefix_config(config, prefix), device, prefix);
  const Plan own = decode_plan(own_config(config, prefix), device, keys - config.shape.batch * prefix);
  if (plan.unable.empty()) plan.unable = own.unable;
  if (!plan.unable.empty()) return plan;
  for (Launch& launch : plan.launches) launch.phase = "prefix_" + launch.phase;
  plan.launches.insert(plan.launches.end(), own.launches.begin(), own.launches.end());
  plan.launches.push_back(merge_launch(config, device));
  plan.work.flops += own.work.flops;
  plan.work.bytes += own.work.bytes;
  return plan;
}

CascadeLaunch::CascadeLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, int64_t prefix,
                             const Plan& plan)
    : config_(config),
      prefix_tokens_(prefix),
      prefix_(device, pipelines, prefix_config(config, prefix), plan, "prefix_"),
      own_(device, pipelines, own_config(config, prefix), plan),
      merge_(planned_launch(plan, "merge", device.info())),
      merge_kernel_(pipelines.get(merge_.source).kernel.get()) {
  const auto rows = static_cast<size_t>(config.shape.batch * config.shape.q_heads);
  const auto dim = static_cast<size_t>(config.shape.head_dim);
  length_ = uploaded(device, std::vector{static_cast<int>(prefix)});
  for (Buffer* o : {&prefix_o_, &own_o_}) *o = Buffer(device, rows * dim * sizeof(float));
  for (Buffer* lse : {&prefix_lse_, &own_lse_}) *lse = Buffer(device, rows * sizeof(float));
}

void CascadeLaunch::encode(CommandEncoder& encoder, const DecodeTensors& tensors, const int* own_lengths) const {
  const AttentionShape& shape = config_.shape;
  DecodeTensors prefix = tensors;
  prefix.q_strides = {0, tensors.q_strides.head, tensors.q_strides.batch};
  prefix.o = prefix_o_.data();
  prefix.o_strides = {0, shape.batch * shape.head_dim, shape.head_dim};
  prefix.lse = static_cast<float*>(prefix_lse_.data());
  prefix.lengths = static_cast<const int*>(length_.data());
  prefix_.encode(encoder, prefix);
  DecodeTensors own = tensors;
  own.o = own_o_.data();
  own.o_strides = {shape.q_heads * shape.head_dim, shape.head_dim, shape.head_dim};
  own.lse = static_cast<float*>(own_lse_.data());
  own.table = tensors.table + prefix_tokens_ / config_.page_size;
  own.lengths = own_lengths;
  own_.encode(encoder, own);
  const MergeParams params{.prefix_o = static_cast<const float*>(prefix_o_.data()),
                           .prefix_lse = static_cast<const float*>(prefix_lse_.data()),
                           .own_o = static_cast<const float*>(own_o_.data()),
                           .own_lse = static_cast<const float*>(own_lse_.data()),
                           .o = tensors.o,
                           .lse = tensors.lse,
                           .o_strides = kernel_strides(tensors.o_strides),
                           .batch = static_cast<int>(shape.batch),
                           .heads = static_cast<int>(shape.q_heads)};
  encoder.dispatch(*merge_kernel_, merge_.grid, merge_.threads, merge_.threadgroup_bytes, params);
}

bool CascadeLaunch::at_rest() const {
  bool intact = prefix_.at_rest() && own_.at_rest();
  for (const Buffer* buffer : {&length_, &prefix_o_, &prefix_lse_, &own_o_, &own_lse_}) {
    intact = intact && buffer->guards_intact();
  }
  return intact;
}

}  // namespace attn
