// Tensor maps for tensor copies (TMA) between device memory and shared memory; CUDA devices from sm_90 on.
#pragma once

#include <cstdint>
#include <vector>

#include "common/kernel/tensor_map.h"
#include "common/kernel/types.h"

namespace attn {

/// How a row of the box is permuted in shared memory so that columns meet no bank conflicts: 16-byte chunk c of row r
/// (rows of that many bytes) lands at chunk c ^ (r modulo bytes / 16). The inner box then has at most that many bytes.
enum class Swizzle { none, bytes_32, bytes_64, bytes_128 };

/// A tensor of 1 to 5 dimensions, the innermost first.
struct TensorMapLayout {
  const void* base = nullptr;           // device memory, aligned to 16 bytes
  ElementType element = BF16;           //
  std::vector<uint64_t> dims;           // elements
  std::vector<uint64_t> strides_bytes;  // of every dimension but the innermost, whose elements lie side by side
  std::vector<uint32_t> box;            // elements that one copy moves along each dimension, at most 256
  Swizzle swizzle = Swizzle::none;
};

/// What lies outside the tensor is read as zero and not written. Throws BadInput for what the hardware does not do, and
/// DeviceMissing without a driver or in a build without CUDA.
TensorMap make_tensor_map(const TensorMapLayout& layout);

}  // namespace attn
