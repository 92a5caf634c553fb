// Attention of one new query of each sequence over a paged cache. All sequences begin with the same pages, the prefix.
// The launch "prefix_attend" attends to the prefix: its tiles have queries of all sequences as rows, and a key is read
// once for all rows of a tile. The launch "attend" attends to each sequence's own keys, which follow the prefix. The
// launch "merge" joins the two results (cascade inference: Ye et al. 2024; Hydragen: Juravsky et al. 2024).
#pragma once

#include "common/paged/decode.h"

namespace attn {

/// Returns a plan with the launches "prefix_attend", "attend" and "merge", and with "prefix_join" and "join" unless
/// config.join_last. `keys` is the sum of the lengths of all sequences; each length includes the prefix. The plan's
/// work counts the bytes of the prefix once, and no bytes of "merge". Plan::unable has a reason if the cache is
/// contiguous, if a sequence has more than one query, if tokens are appended, if the prefix is empty, is not whole
/// pages, or is not shorter than kv_len, or if decode_plan() has a reason.
Plan cascade_plan(const DecodeConfig& config, const DeviceInfo& device, int64_t keys, int64_t prefix);

/// One CascadeLaunch must not run twice at the same time. Its device and pipelines must outlive it.
class CascadeLaunch {
 public:
  /// encode() runs the launches of `plan`, which must be the plan of `config` and `prefix`. Every sequence must begin
  /// with the pages that hold the first `prefix` tokens of the first sequence. Throws as DecodeLaunch does.
  CascadeLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, int64_t prefix, const Plan& plan);

  /// own_lengths, [batch], on the device: each sequence's tokens after the prefix. tensors.lengths is not read.
  void encode(CommandEncoder& encoder, const DecodeTensors& tensors, const int* own_lengths) const;
  /// Returns the launch over each sequence's own keys.
  const DecodeLaunch& own() const { return own_; }
  /// Whether DecodeLaunch::at_rest() is true for both DecodeLaunches, and no guard band of the other buffers was
  /// overwritten.
  bool at_rest() const;

 private:
  DecodeConfig config_;
  int64_t prefix_tokens_;
  DecodeLaunch prefix_, own_;
  Launch merge_;
  const Kernel* merge_kernel_;
  Buffer length_, prefix_o_, prefix_lse_, own_o_, own_lse_;
};

}  // namespace attn
