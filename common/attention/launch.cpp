#include "common/attention/launch.h"

#include <limits>
#include <utility>

#include "common/attention/mask_lists.h"
#include "common/base/error.h"

namespace attn {
namespace {

Work work_of(const FlashConfig& config) {
  const AttentionShape& shape = config.shape;
  const auto q = static_cast<double>(shape.batch * shape.q_heads * shape.q_len);
  const auto kv = static_cast<double>(shape.batch * shape.kv_heads * shape.kv_len);
  const auto dim = static_cast<double>(shape.head_dim);
  return {.flops = 4 * dim * shape.unmasked_pairs(),
          .bytes = (q + 2 * kv) * dim * static_cast<double>(size_bytes(config.dtype)) +
                   q * (dim * static_cast<double>(size_bytes(config.out_dtype)) + sizeof(float)),
          .dtype = config.dtype};
}

std::string why_unable(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  if (std::string reason = variant_unable(config.variant, device); !reason.empty()) return reason;
  return FlashOperation::of(device).skip_reason(config, device, hooks).value_or("");
}

constexpr const char* mask_header = "common/attention/kernels/mask.h";

// Whether the kernel walks lists of key blocks. `naive` never walks lists, because it has no tiles. No kernel walks
// lists if the device cannot make lists.
bool walks_lists(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hook) {
  return hook && hook->lists != ListScope::none && config.variant != "naive" && device.operations->mask_list_threads;
}

}  // namespace

Launch attention_launch(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hook,
                        std::set<std::string> run_time) {
  Launch launch = FlashOperation::of(device).kernel(config, device, hook);
  launch.phase = "attention";
  launch.source.run_time = std::move(run_time);
  if (hook) {
    add_hooks(launch.source, *hook);
    if (hook->includes.contains(mask_header) && config.variant != "naive") {
      launch.source.constants["MASK_LISTS"] = walks_lists(config, device, hook);
    }
  }
  return launch;
}

Plan attention_plan(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hook,
                    std::set<std::string> run_time) {
  Plan plan{.work = work_of(config), .unable = why_unable(config, device, hook)};
  if (plan.unable.empty()) plan.launches = {attention_launch(config, device, hook, std::move(run_time))};
  return plan;
}

AttentionLaunch::AttentionLaunch(Device& device, PipelineCache& pipelines, const FlashConfig& config, const Plan& plan,
                                 ListScope scope, FlashOperation::Lists given)
    : shape_(config.shape),
      pages_(config.pool_pages > 0 ? static_cast<int>(config.pool_pages) : std::numeric_limits<int>::max()) {
  const Launch& launch = planned_launch(plan, "attention", device.info());
  const auto constant = [&](const char* name, int64_t otherwise) {
    return launch.source.constants.contains(name) ? launch.source.constants.at(name) : otherwise;
  };
  FlashConfig planned = config;
  planned.block_r = constant("BLOCK_R", config.block_r);
  planned.block_c = constant("BLOCK_C", config.block_c);
  FlashOperation::Lists lists = std::move(given);
  if (!lists && constant("MASK_LISTS", 0) != 0) {
    const Launch blocks = mask_launch(planned, device.info(), launch, scope);
    lists = mask_lists(device, planned, blocks, *pipelines.get(blocks.source).kernel);
  }
  encode_ = FlashOperation::of(device.info())
                .encode_function(device, planned, launch, *pipelines.get(launch.source).kernel, std::move(lists));
}

void AttentionLaunch::encode(CommandEncoder& encoder, const AttentionTensors& tensors) const {
  AttentionParams params{};
  params.q = tensors.q;
  params.k = tensors.k;
  params.v = tensors.v;
  params.o = tensors.o;
  params.lse = tensors.lse;
  params.q_strides = kernel_strides(tensors.q_strides);
  params.k_strides = kernel_strides(tensors.k_strides);
  params.v_strides = kernel_strides(tensors.v_strides);
  params.o_strides = kernel_strides(tensors.o_strides);
  params.batch = static_cast<int>(shape_.batch);
  params.q_heads = static_cast<int>(shape_.q_heads);
  params.kv_heads = static_cast<int>(shape_.kv_heads);
  params.q_len = static_cast<int>(shape_.q_len);
  params.kv_len = static_cast<int>(shape_.kv_len);
  params.scale = static_cast<float>(shape_.effective_scale());
  params.score_data = tensors.hook_data;
  params.pages = pages_;
  encode_(encoder, params);
}

}  // namespace attn
