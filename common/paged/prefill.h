// Attention of long queries of each sequence, a prompt or a chunk of one, over its cached keys: the kernels of
// common/attention with hooks for pages and lengths (kernels/prefill).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "common/attention/launch.h"
#include "common/paged/decode.h"
#include "common/paged/kernels/prefill/prefill.h"

namespace attn {

/// The kernel's configuration, with the tile that it chooses: of `config` prefill reads all but workers and join_last;
/// a block_c of 0 leaves that to it.
FlashConfig prefill_config(const DecodeConfig& config, const DeviceInfo& device, const AttentionHooks* hooks = nullptr);

/// Why no launch takes such types and such a rotary_dim; empty where some do.
std::string prefill_unable(const DecodeConfig& config);

/// The launch "attention"; the work is that of `pairs` of queries and keys, over all heads, and `keys`, the tokens of
/// all sequences together. Or why the device does not take it. A mask hook is left out. With `appends` the launch turns
/// the queries, writes the new keys, turned, and values to the cache, and attends.
Plan prefill_plan(const DecodeConfig& config, const DeviceInfo& device, double pairs, int64_t keys,
                  const AttentionHooks* hooks = nullptr);

/// A kernel that is loaded for one configuration. Two launches of one PrefillLaunch must not run at the same time. It
/// lives no longer than its device and pipelines.
class PrefillLaunch {
 public:
  /// Runs the launch "attention" of the plan, which is of this configuration, for a cache of so many pages, or as many
  /// sequences where it is contiguous. Throws CompileError, and BadInput where the device does not take it.
  PrefillLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, const Plan& plan,
                int64_t pool_pages);

  /// Of the tensors all but scales. Where lengths, table, hook_data or what is of new tokens are others than before,
  /// what the kernel reads is written anew: no launch may run then.
  void encode(CommandEncoder& encoder, const DecodeTensors& tensors) const;
  /// The same for a caller that writes data(tensors) to the device itself, in the order of its stream.
  void encode(CommandEncoder& encoder, const DecodeTensors& tensors, const void* data) const;
  PrefillData data(const DecodeTensors& tensors) const;
  /// Whether all counters are 0 again, as they are between two launches, and no guard band was overwritten.
  bool at_rest() const;

 private:
  bool appends_;
  int shares_;  // of new tokens
  AttentionLaunch attention_;
  Buffer counters_;
  mutable Buffer data_;             // a PrefillData
  mutable PrefillData known_ = {};  // what it holds
};

}  // namespace attn
