// The fused kernel of linear attention on Hopper (common/linear/kernels/fused.cuda.cu): the shapes that the kernel
// takes, the plan of a launch, and the kernel's parameters.
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
  bool causal = true, normalised = false;
  Gate gate = GATE_NONE;
  int64_t segments = 0;  // parts of the longest sequence; 0: fused_plan() chooses their number
};

/// Returns, in one line, the reason why the kernel does not take a shape. Returns nothing if the kernel takes the
/// shape. The kernel multiplies queries by a copy of the state in 16 bits. In a copy of f16 an element of the state
/// whose magnitude is 65520 or more becomes infinite. Keys and values decide whether the state has such elements, so
/// fused_unable() cannot check this. A copy of bf16 has the range of f32.
std::optional<std::string> fused_unable(const FusedShape& shape);

struct FusedPlan {
  FunctionConstants constants;
  int64_t grid = 1, threads = 1, threadgroup_bytes = 0;
  int64_t column_panels = 1;                                                   // panels of value columns of a slice
  int64_t slices = 1, slots = 1, segments = 1, segment_chunks = 1, reach = 1;  // see FusedParams
  /// The workspace that threadgroups share, in bytes. Its first zero_bytes bytes are counters and flags, which must be
  /// 0 before the first launch. The totals begin at totals_at, and the states at states_at. What decay_chunks writes
  /// begins at prepared_at, in the order of FusedParams.
  size_t zero_bytes = 0, totals_at = 0, states_at = 0, prepared_at = 0, workspace_bytes = 0;
  int64_t chunks = 0;  // FusedParams::chunks
};

/// Returns the plan of a shape on `units` multiprocessors; the plan depends on nothing else. The length of a segment is
/// rounded up to whole chunks, so there may be fewer segments than FusedShape::segments.
FusedPlan fused_plan(const FusedShape& shape, int64_t units);

/// Returns the kernel's parameters. `workspace` is device memory of plan.workspace_bytes bytes, aligned to 256 bytes.
/// Throws BadInput for an address or a stride that is no multiple of 16 bytes, and DeviceMissing in a build without
/// CUDA.
FusedParams fused_params(const FusedShape& shape, const FusedPlan& plan, const LinearParams& linear, void* workspace);

}  // namespace attn
