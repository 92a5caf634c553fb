// Grouped-query attention by copies: a kernel copies each key/value head for each query head of its group.
#pragma once

#include <cstdint>

#include "common/data/compare.h"
#include "common/data/tensor.h"
#include "common/device/pipeline_cache.h"
#include "common/launch/plan.h"

namespace attn {

/// The shape of K before the copies. V has the same shape.
struct ExpandShape {
  int64_t batch = 1;
  int64_t kv_heads = 1, group = 1;  // group: query heads that share a key/value head
  int64_t rows = 1;                 // keys
  int64_t head_dim = 128;           // a multiple of 8
  DType dtype = DType::f32;
};

/// Returns the tensor with `group` consecutive copies of each head: the reference on the host.
Tensor expanded(const Tensor& tensor, int64_t group);

/// Returns a plan of one launch. The plan's work counts each input byte as read once and each output byte as written
/// once. Throws BadInput for a shape that is out of range.
Plan expand_plan(const ExpandShape& shape, const DeviceInfo& device);

/// K and V on the device. Inputs: [batch, kv_heads, rows, head_dim]. Outputs: [batch, kv_heads * group, rows,
/// head_dim]. Strides are in elements. On a GPU each address, and each stride in bytes, must be a multiple of 16.
struct ExpandTensors {
  const void *k = nullptr, *v = nullptr;
  void *k_out = nullptr, *v_out = nullptr;
  Strides in_strides{}, out_strides{};
};

/// A kernel that is loaded for one shape. The device and the pipelines must outlive this object.
class ExpandLaunch {
 public:
  /// `plan` must have the launch of expand_plan() of `shape`. Throws BadInput and CompileError.
  ExpandLaunch(Device& device, PipelineCache& pipelines, const ExpandShape& shape, const Plan& plan);

  void encode(CommandEncoder& encoder, const ExpandTensors& tensors) const;

 private:
  ExpandShape shape_;
  Launch launch_;
  const Kernel* kernel_;
  int64_t tile_rows_;
};

/// An ExpandLaunch on buffers. `k` and `v` have the shape and the layout of `in`; `k_out` and `v_out` have `group`
/// times as many heads. The buffers must outlive this object.
class HeadCopies {
 public:
  HeadCopies(Device& device, PipelineCache& pipelines, const Tensor& in, int64_t group, Buffer& k, Buffer& v,
             Buffer& k_out, Buffer& v_out, const Plan& plan);

  void encode(CommandEncoder& encoder) const;
  void poison();
  /// Checks that each query head has a copy of its key/value head, bit for bit.
  Check check() const;

 private:
  Tensor in_;  // the shape of K and V, without data
  Strides out_strides_;
  int64_t group_;
  Buffer *sources_[2], *targets_[2];  // K and V
  ExpandLaunch launch_;
};

}  // namespace attn
