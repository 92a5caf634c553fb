// An attention launch that owns no tensors: each call of encode() gives the tensors.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "common/attention/flash.h"
#include "common/attention/hook.h"
#include "common/device/pipeline_cache.h"
#include "common/launch/plan.h"

namespace attn {

/// The tensors that a launch reads and writes, on its device: q, o [batch, q_heads, q_len, head_dim]; k, v [batch,
/// kv_heads, kv_len, head_dim]; lse [batch, q_heads, q_len], f32, natural log. If lse is null, the launch does not
/// write it. Strides are in elements. On cuda the kernels `wgmma` and `mma_sync` take only addresses and strides that
/// are multiples of 16 bytes.
struct AttentionTensors {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;
  Strides q_strides{}, k_strides{}, v_strides{}, o_strides{};
  const void* hook_data = nullptr;  // ScoreContext::data
};

/// Returns the launch "attention" of a configuration. The texts of `hook` replace the hooks' headers; `hook` may be
/// null. `run_time` becomes KernelSource::run_time.
Launch attention_launch(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hook,
                        std::set<std::string> run_time = {});

/// Returns a plan of one launch of the kernel. The plan's work counts the flops of the pairs that the shape does not
/// mask, and the bytes of each tensor once. Pairs that only hooks hide count too. If the device cannot run the launch,
/// the plan has no launch, and Plan::unable says why.
Plan attention_plan(const FlashConfig& config, const DeviceInfo& device, const AttentionHooks* hook = nullptr,
                    std::set<std::string> run_time = {});

/// A kernel that is loaded for one configuration, ready to be encoded on any tensors of its shape. Two launches of one
/// AttentionLaunch must not run at the same time. The device and the pipelines must outlive the AttentionLaunch.
///
/// If the mask hook wants lists of key blocks, and the caller does not give the lists, the first encode() makes the
/// lists on the device, and waits for the device. The hook's data must be on the device before this call. Later calls
/// use the same lists. A call with another `hook_data` makes the lists anew, in the same memory.
class AttentionLaunch {
 public:
  /// Takes the launch "attention" from the plan. The plan was made for this configuration, but possibly for another
  /// tile. If the tiles differ, the tile of the plan counts. `lists` is AttentionHooks::lists of the hooks with which
  /// the plan was made. If the caller makes the lists, `given` returns the caller's lists. Throws CompileError, and
  /// BadInput if the device does not take the configuration.
  AttentionLaunch(Device& device, PipelineCache& pipelines, const FlashConfig& config, const Plan& plan,
                  ListScope lists = ListScope::none, FlashOperation::Lists given = {});

  void encode(CommandEncoder& encoder, const AttentionTensors& tensors) const;

 private:
  AttentionShape shape_;
  int pages_;  // how many pages K and V have, if a hook gives places on pages; else the largest int
  FlashOperation::EncodeFunction encode_;
};

}  // namespace attn
