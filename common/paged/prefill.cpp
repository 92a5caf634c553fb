#include "common/paged/prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "common/base/divided_up.h"
#include "common/base/error.h"
#include "common/paged/kernels/expand.h"

namespace attn {
namespace {

/// Returns the configuration of the launch "attention". After the launch "expand" it reads a contiguous cache of Q's
/// type.
DecodeConfig expanded(const DecodeConfig& config) {
  DecodeConfig result = attending(config);
  if (!has_scales(config.cache_dtype)) return result;
  result.cache_dtype = config.dtype;
  result.page_size = 0;
  return result;
}

std::string hook_file(const std::string& name) { return fmt::format("common/attention/kernels/{}.h", name); }
std::string own_file(const std::string& name) { return fmt::format("common/paged/kernels/prefill/own_{}.h", name); }
std::string wrapper(const std::string& name) {
  return fmt::format("#include \"common/paged/kernels/prefill/{}.h\"\n", name);
}

/// Returns hooks that call the caller's hooks.
AttentionHooks prefill_hooks(const DecodeConfig& config, const AttentionHooks* caller_hooks) {
  AttentionHooks hooks;
  hooks.change = ScoreChange::none;
  if (caller_hooks) hooks = *caller_hooks;
  hooks.includes.erase(hook_file("mask"));
  const auto wrap = [&](const std::string& name) {
    hooks.includes[own_file(name)] = hooks.includes[hook_file(name)];
    hooks.includes[hook_file(name)] = wrapper(name);
  };
  if (hooks.includes.contains(hook_file("keys"))) {
    wrap("keys");
  } else {
    hooks.includes[hook_file("keys")] = wrapper("keys");
  }
  if (hooks.includes.contains(hook_file("sink"))) wrap("sink");
  if (!hooks.text.empty()) {
    hooks.includes[own_file("score")] = hooks.text;
    hooks.text = wrapper("score");
  }
  if (config.page_size > 0) {
    hooks.includes[hook_file("pages")] = wrapper("pages");
    hooks.constants["PAGE_SIZE"] = config.page_size;
  }
  if (!config.appends) return hooks;
  hooks.includes[hook_file("before")] = wrapper("before");
  hooks.constants["PAGE_SIZE"] = config.page_size;
  hooks.constants["ROTARY_DIM"] = config.rotary_dim;
  hooks.constants["INTERLEAVED"] = config.pairing == RopePairing::interleaved;
  hooks.rotation = Rotation::queries;  // even with rotary_dim 0: only kernels that can rotate take a before hook
  if (config.rotary_dim > 0) hooks.includes[hook_file("rotate")] = wrapper("rotate");
  return hooks;
}

Launch expand_launch(const DecodeConfig& config, const DeviceInfo& device) {
  const AttentionShape& shape = config.shape;
  const ElementKernel& operation = *device.operations->expand;
  Launch launch;
  launch.phase = "expand";
  launch.source.path = device.operations->kernel_file("common/paged/kernels/expand");
  launch.source.entry = "expand";
  launch.source.constants = {{"HEAD_DIM", shape.head_dim},
                             {"CACHE_TYPE", element_type(config.cache_dtype)},
                             {"OUT_TYPE", element_type(config.dtype)},
                             {"PAGE_SIZE", config.page_size},
                             {"KEYS", operation.elements}};
  if (operation.threads > 1) launch.source.constants["THREADS"] = operation.threads;
  launch.grid = {static_cast<uint32_t>(divided_up(shape.kv_len, operation.elements)),
                 static_cast<uint32_t>(shape.kv_heads), static_cast<uint32_t>(shape.batch)};
  launch.threads = operation.threads;
  return launch;
}

FlashConfig untiled(const DecodeConfig& config) {
  return {.variant = "tuned",
          .shape = config.shape,
          .dtype = config.dtype,
          .out_dtype = config.out_dtype,
          .layout = Layout::bhsd,
          .block_c = config.block_c,
          .page_size = config.page_size};
}

}  // namespace

std::string prefill_unable(const DecodeConfig& config) {
  if (config.cache_dtype != config.dtype && !has_scales(config.cache_dtype)) {
    return fmt::format("cache_dtype {}: prefill takes only a cache of Q's type, {}, or of 8 bits",
                       name(config.cache_dtype), name(config.dtype));
  }
  const int64_t turned = config.appends ? config.rotary_dim : 0;
  if (turned % 8 != 0 || turned < 0 || turned > config.shape.head_dim) {
    return fmt::format("rotary_dim {}: a multiple of 8, at most head_dim ({}), is allowed with task prefill",
                       config.rotary_dim, config.shape.head_dim);
  }
  return config.appends ? append_unable(config) : "";
}

FlashConfig prefill_config(const DecodeConfig& config, const DeviceInfo& device, const AttentionHooks* hooks) {
  FlashConfig flash = untiled(expanded(config));
  choose_tile(flash, device, {.change = hooks ? hooks->change : ScoreChange::none});
  return flash;
}

int64_t expanded_bytes(const DecodeConfig& config) {
  if (!has_scales(config.cache_dtype)) return 0;
  const AttentionShape& shape = config.shape;
  return 2 * shape.kv_heads * shape.kv_len * shape.head_dim * static_cast<int64_t>(size_bytes(config.dtype));
}

Plan prefill_plan(const DecodeConfig& config, const DeviceInfo& device, double pairs, int64_t keys,
                  const AttentionHooks* hooks) {
  const AttentionHooks all = prefill_hooks(expanded(config), hooks);
  Plan plan = attention_plan(prefill_config(config, device, hooks), device, &all);
  const auto element = [](DType type) { return static_cast<double>(size_bytes(type)); };
  const auto dim = static_cast<double>(config.shape.head_dim);
  const auto outputs = static_cast<double>(config.shape.batch * config.shape.q_heads * config.shape.q_len);
  plan.work.flops = 4 * dim * pairs;
  plan.work.bytes = static_cast<double>(2 * keys * config.shape.kv_heads) * dim * element(config.cache_dtype) +
                    outputs * (dim * (element(config.dtype) + element(config.out_dtype)) + sizeof(float));
  if (std::string reason = prefill_unable(config); !reason.empty()) plan.unable = std::move(reason);
  if (has_scales(config.cache_dtype)) {
    plan.work.bytes += config.scale_bytes(keys);
    if (!device.operations->expand) plan.unable = no_kernel_for("prompts over a cache of 8 bits");
    if (appends_first(config) && !device.operations->append_threads) {
      plan.unable = no_kernel_for("appending to a cache");
    }
    if (plan.unable.empty()) plan.launches.insert(plan.launches.begin(), expand_launch(config, device));
    if (plan.unable.empty() && appends_first(config)) append_first(plan, config, device);
  }
  if (config.appends) {
    const auto rows = static_cast<double>(2 * config.shape.batch * config.shape.kv_heads * config.shape.q_len);
    plan.work.bytes += rows * dim * element(config.dtype);
  }
  return plan;
}

PrefillLaunch::PrefillLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, const Plan& plan,
                             int64_t pool_pages)
    : config_(attending(config)),
      attention_([&] {
        FlashConfig flash = untiled(expanded(config));
        flash.pool_pages = has_scales(config.cache_dtype) ? config.shape.batch : pool_pages;
        return AttentionLaunch(device, pipelines, flash, plan);
      }()),
      counters_(device, 2 * sizeof(unsigned)),
      data_(device, sizeof(PrefillData)) {
  const unsigned zeros[2] = {};
  counters_.upload(zeros, sizeof zeros);
  // With several shares for each core or multiprocessor, threadgroups that begin early take more shares.
  constexpr int64_t unit_shares = 4;
  const Launch& launch = planned_launch(plan, "attention", device.info());
  shares_ =
      static_cast<int>(std::min<int64_t>({config.shape.batch * config.shape.q_len, unit_shares * device.info().units,
                                          static_cast<int64_t>(launch.grid.count())}));
  if (appends_first(config)) append_.emplace(device, pipelines, config, plan);
  if (!has_scales(config.cache_dtype)) return;
  expand_ = planned_launch(plan, "expand", device.info());
  expand_kernel_ = pipelines.get(expand_->source).kernel.get();
  expanded_ = Buffer(device, static_cast<size_t>(config.shape.batch * expanded_bytes(config)));
}

bool PrefillLaunch::at_rest() const {
  unsigned counts[2];
  counters_.download(counts, sizeof counts);
  return counts[0] == 0 && counts[1] == 0 && counters_.guards_intact() && data_.guards_intact() &&
         (!append_ || append_->guards_intact()) && (!expand_ || expanded_.guards_intact());
}

PrefillData PrefillLaunch::data(const DecodeTensors& tensors) const {
  PrefillData data;
  std::memset(&data, 0, sizeof data);  // because encode() compares all bytes, padding too
  data.lengths = tensors.lengths;
  data.table = tensors.table;
  data.max_pages = static_cast<int>(tensors.max_pages);
  data.hook_data = tensors.hook_data;
  if (config_.appends) {
    data.tokens = new_tokens(tensors);
    data.shares = shares_;
    data.counters = static_cast<unsigned*>(counters_.data());
  }
  return data;
}

void PrefillLaunch::encode(CommandEncoder& encoder, const DecodeTensors& tensors) const {
  const PrefillData now = data(tensors);
  if (std::memcmp(&now, &known_, sizeof now) != 0) {
    data_.upload(&now, sizeof now);
    known_ = now;
  }
  encode(encoder, tensors, data_.data());
}

void PrefillLaunch::encode(CommandEncoder& encoder, const DecodeTensors& given, const void* data) const {
  DecodeTensors tensors = append_ ? append_->encode(encoder, given) : given;
  if (expand_) {
    const AttentionShape& shape = config_.shape;
    const ExpandParams params{.cache = cache_view(tensors),
                              .k = expanded_.data(),
                              .v = static_cast<std::byte*>(expanded_.data()) + expanded_.bytes() / 2,
                              .lengths = tensors.lengths,
                              .most_keys = static_cast<int>(shape.kv_len),
                              .kv_heads = static_cast<int>(shape.kv_heads)};
    encoder.dispatch(*expand_kernel_, expand_->grid, expand_->threads, expand_->threadgroup_bytes, params);
    tensors.k = params.k;
    tensors.v = params.v;
    const int64_t head = shape.kv_len * shape.head_dim;
    tensors.k_strides = tensors.v_strides = {shape.kv_heads * head, head, shape.head_dim};
  }
  attention_.encode(encoder, {.q = tensors.q,
                              .k = tensors.k,
                              .v = tensors.v,
                              .o = tensors.o,
                              .lse = tensors.lse,
                              .q_strides = tensors.q_strides,
                              .k_strides = tensors.k_strides,
                              .v_strides = tensors.v_strides,
                              .o_strides = tensors.o_strides,
                              .hook_data = data});
}

}  // namespace attn
