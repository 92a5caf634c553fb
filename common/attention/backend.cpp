#include "common/attention/backend.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/error.h"

namespace attn {

const FlashBackend& FlashBackend::of(const DeviceInfo& device) { return device.is_cuda() ? cuda_flash() : cpu_flash(); }

FlashBackend::Launcher FlashBackend::plain_launcher(const Launch& launch, const Kernel& kernel, Lists lists) {
  return [launch, &kernel, lists = std::move(lists)](CommandEncoder& encoder, const AttentionParams& params) {
    const auto dispatch = [&](const auto& all) {
      encoder.dispatch(kernel, launch.grid, launch.threads, launch.threadgroup_bytes, all);
    };
    if (lists) {
      dispatch(WithLists<AttentionParams>{params, lists(params)});
    } else {
      dispatch(params);
    }
  };
}

FlashConfig FlashConfig::from(const Case& config) {
  FlashConfig flash;
  flash.variant = config.text("variant");
  AttentionShape& shape = flash.shape;
  shape.batch = config.integer("batch");
  shape.q_heads = config.integer("q_heads");
  shape.kv_heads = config.integer("kv_heads");
  shape.q_len = config.integer("q_len");
  shape.kv_len = config.integer("kv_len");
  shape.head_dim = config.integer("head_dim");
  shape.causal = config.integer("causal") != 0;
  flash.dtype = parse_dtype(config.text("dtype"));
  flash.out_dtype = parse_dtype(config.text("out_dtype"));
  flash.layout = parse_layout(config.text("layout"));
  flash.block_r = config.integer("block_r");
  flash.block_c = config.integer("block_c");
  if (shape.q_heads % shape.kv_heads != 0) {
    throw BadInput(
        fmt::format("kv_heads={} does not divide q_heads={}; each key/value head serves the same number of query heads",
                    shape.kv_heads, shape.q_heads));
  }
  return flash;
}

}  // namespace attn
