// The launch that appends new tokens to a cache whose elements have 8 bits.
#include "common/paged/kernels/append_scaled.h"

#include "common/attention/flash.h"
#include "common/paged/decode.h"

namespace attn {

DecodeConfig attending(const DecodeConfig& config) {
  DecodeConfig result = config;
  if (!appends_first(config)) return result;
  result.appends = false;
  result.rotary_dim = 0;
  result.pairing = RopePairing::half_split;
  return result;
}

void append_first(Plan& plan, const DecodeConfig& config, const DeviceInfo& device) {
  const AttentionShape& shape = config.shape;
  Launch launch;
  launch.phase = "append";
  launch.source.path = device.operations->kernel_file("common/paged/kernels/append_scaled");
  launch.source.entry = "append_scaled";
  launch.source.constants = {{"HEAD_DIM", shape.head_dim},
                             {"IN_TYPE", element_type(config.dtype)},
                             {"CACHE_TYPE", element_type(config.cache_dtype)},
                             {"PAGE_SIZE", config.page_size},
                             {"ROTARY_DIM", config.rotary_dim},
                             {"INTERLEAVED", config.pairing == RopePairing::interleaved}};
  launch.grid = {static_cast<uint32_t>(shape.q_len), static_cast<uint32_t>(shape.kv_heads),
                 static_cast<uint32_t>(shape.batch)};
  launch.threads = *device.operations->append_threads;
  plan.launches.insert(plan.launches.begin(), launch);
  if (config.rotary_dim == 0) return;
  const auto elements = static_cast<double>(shape.batch * shape.q_heads * shape.q_len * shape.head_dim);
  plan.work.bytes += 2 * elements * static_cast<double>(size_bytes(config.dtype));  // turned_q: written, then read
}

AppendScaledLaunch::AppendScaledLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config,
                                       const Plan& plan)
    : config_(config),
      launch_(planned_launch(plan, "append", device.info())),
      kernel_(pipelines.get(launch_.source).kernel.get()) {
  if (config.rotary_dim == 0) return;
  const AttentionShape& shape = config.shape;
  turned_q_ = Buffer(device, static_cast<size_t>(shape.batch * shape.q_heads * shape.q_len * shape.head_dim) *
                                 size_bytes(config.dtype));
}

DecodeTensors AppendScaledLaunch::encode(CommandEncoder& encoder, const DecodeTensors& tensors) const {
  const AttentionShape& shape = config_.shape;
  const AppendScaledParams params{.cache = cache_view(tensors),
                                  .tokens = new_tokens(tensors),
                                  .lengths = tensors.lengths,
                                  .most_keys = static_cast<int>(shape.kv_len),
                                  .q_heads = static_cast<int>(shape.q_heads),
                                  .kv_heads = static_cast<int>(shape.kv_heads),
                                  .q_len = static_cast<int>(shape.q_len),
                                  .q = tensors.q,
                                  .q_strides = kernel_strides(tensors.q_strides),
                                  .turned_q = turned_q_.data()};
  encoder.dispatch(*kernel_, launch_.grid, launch_.threads, launch_.threadgroup_bytes, params);
  DecodeTensors result = tensors;
  if (config_.rotary_dim == 0) return result;
  result.q = turned_q_.data();
  const int64_t head = shape.q_len * shape.head_dim;
  result.q_strides = {shape.q_heads * head, head, shape.head_dim};
  return result;
}

}  // namespace attn
