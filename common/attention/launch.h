// An attention launch without its inputs: anyone who has pointers can encode one.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "common/attention/flash.h"
#include "common/attention/hook.h"
#include "common/device/pipeline_cache.h"
#include "common/launch/plan.h"

namespace attn {

/// What a launch reads and writes, on its device: q, o [batch, q_heads, q_len, head_dim]; k, v [batch, kv_heads,
/// kv_len, head_dim]; lse [batch, q_heads, q_len], f32, natural log, or null where nobody wants it. Strides are in
/// elements. On a GPU the wgmma kernel takes addresses and strides that are multiples of 16 bytes.
struct AttentionTensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;
  Strides q_strides{}, k_strides{}, v_strides{}, o_strides{};
  const void* hook_data = nullptr;  // what ScoreContext::data points to
};

/// The launch "attention" of a configuration, with a hook, which may be null, in its place. `run_time`: as KernelSource
/// has it.
Launch attention_launch(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hook,
                        std::set<std::string> run_time = {});

/// One launch of the kernel, the arithmetic of the pairs that are not masked, each tensor once; or why not.
Plan attention_plan(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hook = nullptr,
                    std::set<std::string> run_time = {});

/// A kernel that is loaded for one configuration, ready to be encoded on any tensors of its shape. Two launches of one
/// AttentionLaunch must not run at the same time. It lives no longer than its device and pipelines.
///
/// Where a mask hook wants lists of key blocks, the first encode() has the device make them, and waits for that: the
/// hook's data have to be there. Later ones use the same lists until `hook_data` is another pointer, whose encode()
/// makes them anew in the same memory.
class AttentionLaunch {
 public:
  /// Runs the launch "attention" of the plan, which is of this configuration, but for the tile: that is the plan's.
  /// `lists`: of the hooks that the plan was made with. Throws CompileError, and BadInput where the device does not
  /// take the configuration.
  AttentionLaunch(Device& device, PipelineCache& pipelines, const FlashConfig& config, const Plan& plan,
                  ListScope lists = ListScope::none);

  void encode(CommandEncoder& encoder, const AttentionTensors& tensors) const;

 private:
  AttentionShape shape_;
  int pages_;  // of K and V, where a hook gives places on pages; else no limit
  FlashOperation::EncodeFunction encode_;
};

}  // namespace attn
