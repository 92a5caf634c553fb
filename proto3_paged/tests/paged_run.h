// Small configurations of the experiment, and functions that run a configuration on the device under test and
// check the output.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/testing/tested_device.h"
#include "proto3_paged/problem.h"

namespace attn {

/// Returns a small configuration with ragged lengths. One sequence has no tokens.
inline PagedConfig paged_config() {
  PagedConfig config;
  config.decode.shape = {
      .batch = 4, .q_heads = 6, .kv_heads = 2, .q_len = 1, .kv_len = 100, .head_dim = 64, .causal = true};
  if (test::on_cuda) config.decode.dtype = config.decode.cache_dtype = config.decode.out_dtype = DType::bf16;
  config.decode.page_size = 16;
  config.lengths = "ragged";
  return config;
}

/// Returns the plan of a configuration with `hooks` in place of the configuration's own modifiers.
inline Plan hooked_plan(const PagedConfig& config, const DeviceInfo& device, const AttentionHooks& hooks) {
  return config.prefill ? prefill_plan(config.decode, device, 0, 0, &hooks)
                        : decode_plan(config.decode, device, 0, &hooks);
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
    problem.poison();
    CommandEncoder encoder;
    problem.encode(encoder);
    chosen.submit(encoder);
    run.check = problem.check();
    if (!run.check.ok) break;
  }
  run.output = problem.output();
  return run;
}
/// Returns the worst difference that the check finds. Returns an empty text if there is none, and if a GPU cannot run
/// the configuration.
inline std::string difference(const PagedConfig& config) {
  try {
    const Check check = run_paged(config).check;
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
  Device& chosen = test::device();
  const auto inputs = std::make_shared<PagedInputs>(chosen, config, 7);
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
  PagedProblem problem(chosen, test::pipelines(), inputs, config, paged_plan(config, chosen.info()));
  problem.poison();
  CommandEncoder encoder;
  problem.encode(encoder);
  chosen.submit(encoder);
  const Check check = problem.check();
  return check.ok ? "" : check.worst;
}

/// Returns a configuration that rotates new tokens (RoPE) and appends them to a cache on pages in random order.
inline PagedConfig appending_config(const std::string& append) {
  PagedConfig config = paged_config();
  config.append = append;
  config.decode.appends = append == "fused";
  config.decode.rotary_dim = config.decode.shape.head_dim;
  config.page_order = "random";
  return config;
}

}  // namespace attn
