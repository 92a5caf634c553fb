// Attention of many queries of each sequence, a prompt or a chunk of a prompt, over its cached keys, by the kernels of
// common/attention with hooks (kernels/prefill). These kernels read no cache of 8 bits, so an earlier launch converts
// such a cache to a contiguous cache of Q's type (kernels/expand.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "common/attention/launch.h"
#include "common/paged/decode.h"
#include "common/paged/kernels/prefill/prefill.h"

namespace attn {

/// Returns the kernel's configuration, including the tile. If config.block_c is 0, it is chosen with the tile.
/// config.workers and config.join_last are ignored.
FlashConfig prefill_config(const DecodeConfig& config, const DeviceInfo& device, const AttentionHooks* hooks = nullptr);

/// Returns why prefill does not take the configuration, whatever the device; an empty text if prefill takes it.
std::string prefill_unable(const DecodeConfig& config);

/// Returns the bytes of a sequence of kv_len keys whose cache of 8 bits is converted to Q's type; 0 for other caches.
int64_t expanded_bytes(const DecodeConfig& config);

/// Returns a plan with the launch "attention". If the device does not take the configuration, Plan::unable has the
/// reason. With a cache of 8 bits the launch "expand" comes before "attention"; with `appends` too, "append" comes
/// before "expand". With a cache of Q's type, "attention" itself appends. `pairs`, the pairs of a query and a key over
/// all heads, and `keys`, the tokens of all sequences together, give the work. The mask hook in `hooks` is ignored.
Plan prefill_plan(const DecodeConfig& config, const DeviceInfo& device, double pairs, int64_t keys,
                  const AttentionHooks* hooks = nullptr);

/// The loaded kernels of one configuration, and the memory that they share. One PrefillLaunch must not run twice at the
/// same time. Its device and pipelines must outlive it.
class PrefillLaunch {
 public:
  /// `plan` must be the plan of `config`. pool_pages: the cache's pages, or the sequences of a contiguous cache. For a
  /// cache of 8 bits the PrefillLaunch allocates expanded_bytes() for each sequence. Throws CompileError, OutOfMemory,
  /// and BadInput if the device does not take the plan.
  PrefillLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, const Plan& plan,
                int64_t pool_pages);

  /// Uploads data(tensors) if it differs from the data uploaded last. No launch of this object may run during the
  /// upload.
  void encode(CommandEncoder& encoder, const DecodeTensors& tensors) const;
  /// Encodes the same launches without the upload. `data` is memory of the device to which the caller has encoded, on
  /// the same stream, a write of data(tensors).
  void encode(CommandEncoder& encoder, const DecodeTensors& tensors, const void* data) const;
  PrefillData data(const DecodeTensors& tensors) const;
  /// Whether all counters are 0, as between two launches, and no guard band was overwritten.
  bool at_rest() const;

 private:
  DecodeConfig config_;  // of the launch that attends
  int shares_;           // PrefillData::shares
  AttentionLaunch attention_;
  std::optional<AppendScaledLaunch> append_;
  std::optional<Launch> expand_;
  const Kernel* expand_kernel_ = nullptr;
  Buffer expanded_;  // K, then V: [batch, kv_heads, kv_len, head_dim]
  Buffer counters_;
  mutable Buffer data_;             // a PrefillData
  mutable PrefillData known_ = {};  // the content of data_
};

}  // namespace attn
