// Attention of new queries over caches whose sequences begin with the same pages. These pages, the prefix, are read
// once for all sequences. The first launch attends to the prefix; its tiles have the queries of all sequences as rows.
// The second launch attends to each sequence's own keys. The third launch joins the two results (cascade inference: Ye
// et al. 2024; Hydragen: Juravsky et al. 2024).
#pragma once

#include "common/paged/decode.h"

namespace attn {

/// Returns a plan with the launches "prefix_attend", "attend" and "merge". The work follows from `keys`, the tokens of
/// all sequences together; the tokens of the prefix are read once. The plan is unable if the cache is not on pages, if
/// a sequence has more than one query, or if tokens are appended. It is also unable if the prefix is not a whole number
/// of pages, has no page, or has kv_len tokens or more.
Plan cascade_plan(const DecodeConfig& config, const DeviceInfo& device, int64_t keys, int64_t prefix);

/// One CascadeLaunch must not run twice at the same time. Its device and pipelines must outlive it.
class CascadeLaunch {
 public:
  /// encode() runs the launches of `plan`, which must be the plan of `config` and `prefix`. Every sequence begins with
  /// the pages that hold the first `prefix` tokens of the first sequence. Throws as DecodeLaunch does.
  CascadeLaunch(Device& device, PipelineCache& pipelines, const DecodeConfig& config, int64_t prefix, const Plan& plan);

  /// own_lengths, [batch], on the device: tokens of a sequence after the prefix. tensors.lengths is not read.
  void encode(CommandEncoder& encoder, const DecodeTensors& tensors, const int* own_lengths) const;
  /// Returns the launch over each sequence's own keys.
  const DecodeLaunch& own() const { return own_; }
  /// Whether DecodeLaunch::at_rest() is true for both launches that attend, and no guard band was overwritten.
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
