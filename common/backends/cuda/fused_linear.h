// The fused form of linear attention on Hopper (common/linear/kernels/fused.cuda.cu): the shapes that the kernel takes,
// its plan, and its parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "common/data/tensor.h"
#include "common/linear/kernels/fused.h"
#include "common/source/kernel_source.h"

namespace attn {

struct FusedShape {
  int64_t sequences = 1, heads = 1;
  int64_t tokens = 1;    // of the longest sequence
  int64_t all_rows = 1;  // tokens of all sequences together
  bool ragged = false;   // sequences lie one after the other in batch 0
  int64_t head_dim = 64, value_dim = 64;
  DType dtype = DType::bf16, out_dtype = DType::bf16;
  bool causal = true, normalised = false, identity = true;  // identity: no feature map
  Gate gate = GATE_NONE;
  int64_t segments = 0;  // parts of the longest sequence; 0: fused_plan() chooses
};

/// The reason, in one line, why the kernel does not take a shape; nothing if it takes the shape. The kernel multiplies
/// queries by a copy of the state in 16 bits. In f16 an element of the copy is infinite from 65520 on. Keys and values
/// decide whether that happens, so fused_unable() cannot check it. bf16 has the range of f32.
std::optional<std::string> fused_unable(const FusedShape& shape);

struct FusedPlan {
  FunctionConstants constants;
  int64_t grid = 1, threads = 1, threadgroup_bytes = 0;
  int64_t slices = 1, slots = 1, segments = 1, segment_chunks = 1, reach = 1;  // see FusedParams
  /// Sizes and offsets, in bytes, of the workspace that threadgroups share: counters and flags, which are 0 before the
  /// first launch, then totals and states.
  size_t zero_bytes = 0, totals_at = 0, states_at = 0, workspace_bytes = 0;
};

/// The plan depends only on the shape and the number of multiprocessors. The length of a segment is rounded up to whole
/// chunks, so there may be fewer segments than FusedShape::segments.
FusedPlan fused_plan(const FusedShape& shape, int64_t units);

/// The kernel's parameters. `workspace` is device memory of plan.workspace_bytes bytes, aligned to 256 bytes. Throws
/// BadInput for an address or a stride that is no multiple of 16 bytes, and DeviceMissing in a build without CUDA.
FusedParams fused_params(const FusedShape& shape, const FusedPlan& plan, const LinearParams& linear, void* workspace);

}  // namespace attn
