// Small configurations of the experiment, and functions that run a configuration on the device under test and
// check the output.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/testing/tested_device.h"
#include "proto3_paged/problem.h"
#include "proto3_paged/sweep.h"

namespace attn {

/// Returns the configurations of small cases: each combination of the values of axes ("page_size=0,16 q_len=1,4"), in
/// order. An axis that is not named has one value; the lengths are ragged, and one sequence has no tokens.
inline std::vector<PagedConfig> paged_configs(const std::string& axes, const DeviceInfo& info) {
  Sweep sweep;
  Block& block = sweep.blocks.emplace_back();
  const std::string small =
      "batch=4 q_heads=6 kv_heads=2 q_len=1 kv_len=100 head_dim=64 causal=1 page_size=16 lengths=ragged dtype=";
  std::istringstream defaults(small + (test::on_cuda ? "bf16" : "f32")), named(axes);
  for (std::string axis; defaults >> axis;) block.push_back(parse_axis(axis, paged_axes()));
  // A named axis takes the place of an earlier one and comes last, so the axes that are named last vary fastest.
  for (std::string text; named >> text;) {
    const Axis axis = parse_axis(text, paged_axes());
    std::erase_if(block, [&](const Axis& known) { return known.name == axis.name; });
    block.push_back(axis);
  }
  std::vector<PagedConfig> configs;
  for (const Case& config : expand(sweep, paged_axes(), [&](Case& one) { complete_paged(one, info); })) {
    configs.push_back(PagedConfig::from(config));
  }
  return configs;
}
inline std::vector<PagedConfig> paged_configs(const std::string& axes) {
  return paged_configs(axes, test::device().info());
}
inline PagedConfig paged_config(const std::string& axes = "") { return paged_configs(axes).at(0); }

inline const std::string prefill_axes = "task=prefill q_len=40 kv_len=200 page_order=random ";
inline const std::string cascade_axes = "lengths=equal page_order=shared shared_pct=70 cascade=1 ";
inline const std::string fused_axes = "append=fused page_order=random ", chain_axes = "append=chain page_order=random ";

/// Returns the plan of a configuration with `hooks` in place of the configuration's own modifiers.
inline Plan hooked_plan(const PagedConfig& config, const DeviceInfo& device, const AttentionHooks& hooks) {
  return config.prefill ? prefill_plan(config.decode, device, 0, 0, &hooks)
                        : decode_plan(config.decode, device, 0, &hooks);
}

/// What the configuration is, for messages.
inline std::string words(const PagedConfig& config) {
  const DecodeConfig& of = config.decode;
  const AttentionShape& shape = of.shape;
  return fmt::format(
      "{} of {} on {} to {}, {} x {} heads on {}, {} queries on {} keys ({}), head_dim {}, page_size {} {} {}, "
      "workers {}, block_c {}, causal {}, joined by {}, append {}, rotary_dim {}, cascade {}",
      config.prefill ? "prefill" : "decode", name(of.dtype), name(of.cache_dtype), name(of.out_dtype), shape.batch,
      shape.q_heads, shape.kv_heads, shape.q_len, shape.kv_len, config.lengths, shape.head_dim, of.page_size,
      config.page_order, config.cache_layout, of.workers, of.block_c, shape.causal, of.join_last ? "last" : "launch",
      config.append, of.rotary_dim, config.cascade);
}

/// Launches the configuration once on these inputs, and checks the output.
inline Check check_of(const PagedConfig& config, const std::shared_ptr<PagedInputs>& inputs) {
  Device& chosen = test::device();
  PagedProblem problem(chosen, test::pipelines(), inputs, config, paged_plan(config, chosen.info()));
  return test::launched(problem, chosen);
}

struct Decoded {
  Check check;
  std::vector<std::byte> output;
};
inline Decoded run_paged(const PagedConfig& config, Device& chosen = test::device(),
                         PipelineCache& cache = test::pipelines(), const std::optional<AttentionHooks>& hooks = {}) {
  const auto inputs = std::make_shared<PagedInputs>(chosen, config, 7);
  PagedProblem problem(chosen, cache, inputs, config,
                       hooks ? hooked_plan(config, chosen.info(), *hooks) : paged_plan(config, chosen.info()), hooks);
  Decoded run;
  for (int launch = 0; launch < 2; ++launch) {  // the second launch runs on the buffers that the first launch left
    run.check = test::launched(problem, chosen);
    if (!run.check.ok) break;
  }
  run.output = problem.output();
  return run;
}
/// Returns the worst difference that the check finds. Returns an empty text if there is none, and if a GPU cannot run
/// the configuration.
inline std::string difference(const PagedConfig& config) {
  try {
    const Check check = run_paged(config, test::device(), test::pipelines(), paged_hooks(config)).check;
    return check.ok ? "" : check.worst;
  } catch (const BadInput& error) {
    // A GPU has limits that the CPU lacks.
    const std::string why = error.what();
    const auto says = [&](const char* part) { return why.find(part) != std::string::npos; };
    return test::on_cuda && (says("on a GPU") || says("bytes of threadgroup memory")) ? "" : why;
  }
}

/// Says where difference_with() puts the garbage.
inline std::string garbage_text(double garbage, bool in_v, bool last) {
  return fmt::format("{} in {} at the {} key", garbage, in_v ? "V" : "K", last ? "last" : "middle");
}

/// Runs the configuration with `garbage` in K or in V of every sequence that has tokens: in one element of head 0, and
/// in a whole row of head 1. The garbage is at the last key if `last`, else at the middle key. Under a causal mask only
/// the last query sees the last key. Returns the worst difference that the check finds, or an empty text.
inline std::string difference_with(const PagedConfig& config, double garbage, bool in_v, bool last) {
  const auto inputs = std::make_shared<PagedInputs>(test::device(), config, 7);
  for (size_t b = 0; b < inputs->lengths.size(); ++b) {
    const int64_t batch = static_cast<int64_t>(b), length = inputs->lengths[b], key = last ? length - 1 : length / 2;
    if (length == 0) continue;
    const auto set = [&](Tensor& tensor, int64_t row) {
      tensor.set(batch, 0, row, 5, garbage);
      for (int64_t d = 0; d < tensor.dim; ++d) tensor.set(batch, 1, row, d, garbage);
    };
    set(in_v ? inputs->v : inputs->k, key);
    const int64_t token = key - length + config.decode.shape.q_len;
    if (config.append != "none" && in_v && token >= 0) set(inputs->new_v, token);
  }
  if (config.append != "none") inputs->new_v_buffer.upload(inputs->new_v.data.data(), inputs->new_v.bytes());
  const Check check = check_of(config, inputs);
  return check.ok ? "" : check.worst;
}

}  // namespace attn
