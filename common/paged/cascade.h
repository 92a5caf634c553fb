// Attention of new queries over caches whose sequences begin with the same pages, which are read once for all of them:
// one launch over the prefix, with the queries of all sequences as rows of its tiles, one over what each sequence has
// of its own, and one that joins the two (cascade inference: Ye et al. 2024; Hydragen: Juravsky et al. 2024).
#pragma once

#include "common/paged/decode.h"

namespace attn {

/// The launches "prefix_attend", "attend" and "merge"; the work is that of `keys`, the tokens of all sequences
/// together, of which the prefix' are read once. Unable where the cache is not on pages, where the prefix is not whole
/// pages, at least one, with less than kv_len tokens, and where there is more than one query or tokens are appended.
Plan cascade_plan(const DecodeConfig& config, const DeviceInfo& device, int64_t keys, int64_t prefix);

/// Two launches of one CascadeLaunch must not run at the same time. It lives no longer than its device and pipelines.
class CascadeLaunch {
 public:
  /// Runs the launches of the plan, which is of this configuration and prefix. Every sequence begins with the pages
  /// that hold the first one's first `prefix` tokens. Throws as DecodeLaunch does.
  CascadeLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, int64_t prefix, const Plan& plan);

  /// own_lengths, [batch], on the device: tokens of a sequence behind the prefix; tensors.lengths is not read.
  void encode(CommandEncoder& encoder, const DecodeTensors& tensors, const int* own_lengths) const;
  /// The launch over what each sequence has of its own.
  const DecodeLaunch& own() const { return own_; }
  /// As DecodeLaunch::at_rest(), of all launches.
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
