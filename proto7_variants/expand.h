// Grouped-query attention by copies: key/value heads, copied for each query head of their group.
#pragma once

#include <cstdint>

#include "common/data/compare.h"
#include "common/data/tensor.h"
#include "common/device/pipeline_cache.h"
#include "common/launch/plan.h"

namespace attn {

/// The shape of K, and of V.
struct ExpandShape {
  int64_t batch = 1;
  int64_t kv_heads = 1, group = 1;  // group: query heads that share a key/value head
  int64_t rows = 1;                 // keys
  int64_t head_dim = 128;           // a multiple of 8
  DType dtype = DType::f32;
};

/// The reference on the host: each head `group` times, one after the other.
Tensor expanded(const Tensor& tensor, int64_t group);

/// One launch; its work counts each input byte read once and each output byte written once. Throws BadInput for a shape
/// that is out of range.
Plan expand_plan(const ExpandShape& shape, const DeviceInfo& device);

/// K and V on their device: in [batch, kv_heads, rows, head_dim], out with as many heads as there are query heads.
/// Strides are in elements. On a GPU addresses and strides are multiples of 16 bytes.
struct ExpandTensors {
  const void *k = nullptr, *v = nullptr;
  void *k_out = nullptr, *v_out = nullptr;
  Strides in_strides{}, out_strides{};
};

/// A kernel that is loaded for one shape. It lives no longer than its device and pipelines.
class ExpandLaunch {
 public:
  /// Runs the launch "expand" of `plan`, the plan of `shape`. Throws BadInput and CompileError.
  ExpandLaunch(Device& device, PipelineCache& pipelines, const ExpandShape& shape, const Plan& plan);

  void encode(CommandEncoder& encoder, const ExpandTensors& tensors) const;

 private:
  ExpandShape shape_;
  Launch launch_;
  const Kernel* kernel_;
  int64_t tile_rows_;
};

/// The launch on buffers. `k` and `v` have the shape and the layout of `in`; `k_out` and `v_out` have as many heads as
/// there are query heads.
class HeadCopies {
 public:
  HeadCopies(Device& device, PipelineCache& pipelines, const Tensor& in, int64_t group, Buffer& k, Buffer& v,
             Buffer& k_out, Buffer& v_out, const Plan& plan);

  void encode(CommandEncoder& encoder) const;
  void poison();
  /// Whether each query head has the copy of its key/value head, bit for bit.
  Check check() const;

 private:
  Tensor in_;  // the shape of K, and of V, without data
  Strides out_strides_;
  int64_t group_;
  Buffer *sources_[2], *targets_[2];  // K and V
  ExpandLaunch launch_;
};

}  // namespace attn
