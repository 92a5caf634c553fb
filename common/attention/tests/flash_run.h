// A small configuration of each variant, and a function that launches a configuration on a device and checks the
// results.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/cases/problem.h"
#include "common/testing/tested_device.h"

namespace attn::test {

inline FlashConfig small(const std::string& variant) {
  FlashConfig config;
  config.variant = variant;
  config.shape = {.batch = 1, .q_heads = 2, .kv_heads = 2, .q_len = 37, .kv_len = 41, .head_dim = 24};
  config.block_r = on_cuda ? 64 : 16;
  config.block_c = 16;
  if (variant == "wgmma") config.dtype = DType::bf16;
  return config;
}

/// Returns why the device does not take the configuration, or nullopt if the device takes it.
inline std::optional<std::string> skip_reason(const FlashConfig& config, const DeviceInfo& info = device().info()) {
  const FlashOperation& operation = FlashOperation::of(info);
  if (auto reason = operation.skip_reason(config, info)) return reason;
  if (operation.kernel(config, info).threadgroup_bytes > info.threadgroup_memory_bytes) {
    return "too much threadgroup memory";
  }
  return std::nullopt;
}

inline bool runs(const FlashConfig& config) { return !skip_reason(config); }

inline std::string describe(const FlashConfig& c) {
  const AttentionShape& s = c.shape;
  return fmt::format("{} b{} h{}/{} q{} k{} d{} causal={} scale={} {}->{} {} {}x{}", c.variant, s.batch, s.q_heads,
                     s.kv_heads, s.q_len, s.kv_len, s.head_dim, s.causal, s.scale, name(c.dtype), name(c.out_dtype),
                     name(c.layout), c.block_r, c.block_c);
}

/// Launches the configuration on `inputs`, and checks the results.
inline Check run(const FlashConfig& config, const std::shared_ptr<FlashInputs>& inputs,
                 const std::optional<AttentionHooks>& hook = {}, Device& on = device(),
                 PipelineCache& cache = pipelines(), int launches = 1) {
  FlashProblem problem(on, cache, inputs, config, attention_plan(config, on.info(), hook ? &*hook : nullptr), hook);
  problem.poison();
  CommandEncoder encoder;
  for (int launch = 0; launch < launches; ++launch) problem.encode(encoder);
  on.submit(encoder);
  return problem.check();
}

inline std::shared_ptr<FlashInputs> random_inputs(const FlashConfig& config, Device& on = device()) {
  return std::make_shared<FlashInputs>(on, config, 7, "");
}

}  // namespace attn::test
