// Tensor maps for tensor copies (TMA) between device memory and shared memory; CUDA devices from sm_90 on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "common/attention/kernels/attention.h"
#include "common/data/tensor.h"
#include "common/kernel/tensor_map.h"
#include "common/kernel/types.h"

namespace attn {

/// How a copy permutes the 16-byte chunks of each row of its box in shared memory, so that threads that read a column
/// cause no bank conflicts. The box is the part of the tensor that one copy moves. With bytes_N a row of the box has at
/// most N bytes. For rows of N bytes, chunk c of row r lands at chunk c ^ (floor(r * N / 128) modulo (N / 16)).
enum class Swizzle { none, bytes_32, bytes_64, bytes_128 };

/// A value for each of at most five dimensions. An array holds the values, so that a launch that makes maps does not
/// allocate.
template <typename T>
class PerDimension {
 public:
  PerDimension(std::initializer_list<T> values = {}) {
    for (const T value : values) push_back(value);
  }
  void push_back(T value) { values_.at(size_++) = value; }
  void clear() { size_ = 0; }

  size_t size() const { return size_; }
  T& operator[](size_t i) { return values_[i]; }
  const T& operator[](size_t i) const { return values_[i]; }
  const T* begin() const { return values_.data(); }
  const T* end() const { return values_.data() + size_; }

 private:
  std::array<T, 5> values_{};
  size_t size_ = 0;
};

/// A tensor of 1 to 5 dimensions. Each list of the layout begins with the innermost dimension.
struct TensorMapLayout {
  const void* base = nullptr;   // device memory, aligned to 16 bytes
  ElementType element = BF16;   // type of an element
  PerDimension<uint64_t> dims;  // elements
  /// A stride for every dimension except the innermost, whose elements are contiguous. The stride of a dimension that
  /// has only one element is not read.
  PerDimension<uint64_t> strides_bytes;
  PerDimension<uint32_t> box;  // elements that one copy moves along each dimension, at most 256
  Swizzle swizzle = Swizzle::none;
};

/// Makes a tensor map. Where the box of a copy reaches outside the tensor, the copy reads zeros and writes nothing.
/// Throws BadInput for a layout that the hardware does not support, and DeviceMissing without a driver or in a build
/// without CUDA.
TensorMap make_tensor_map(const TensorMapLayout& layout);

/// Returns the map of a tensor of `batch` * `heads` * `rows` rows of 16-bit elements. The dimensions of the map are,
/// innermost first, column, row, panel, head, batch. A box has 64 columns and box_rows rows. If head_dim is a multiple
/// of 64, a panel has 64 columns, and a box has box_panels panels. Else the tensor is one panel of head_dim columns
/// (WgmmaParams).
TensorMap panel_map(const void* base, DType dtype, int64_t head_dim, int64_t batch, int64_t heads, int64_t rows,
                    const TensorStrides& strides, int64_t box_rows, int64_t box_panels);

/// Returns the map of a tensor of `batch` * `heads` * `rows` rows of head_dim elements of 8 bits; head_dim is a
/// multiple of 16. The dimensions of the map are those of panel_map(), with one panel of all columns, and a column is
/// two elements. A box has box_rows whole rows, which are not swizzled. Strides are in elements.
TensorMap byte_map(const void* base, int64_t head_dim, int64_t batch, int64_t heads, int64_t rows,
                   const TensorStrides& strides, int64_t box_rows);

/// A map whose boxes lie in shared memory as groups of eight rows, each with all its panels of 64 columns: [group]
/// [panel][8][64].
struct GroupedMap {
  TensorMap map;
  /// If pages lie a whole number of groups apart, this number; a box has all rows of a page. The dimensions are then
  /// column, row of the group, panel, head, group, and page i begins at group i * page_groups. Else 0; a box has eight
  /// rows, and the dimensions are those of panel_map().
  int page_groups;
};
/// Returns a map of `pages` pages of `heads` * `page_rows` rows of 16-bit elements. head_dim is a multiple of 64,
/// page_rows a multiple of 8. strides.batch is the stride of a page.
GroupedMap grouped_map(const void* base, DType dtype, int64_t head_dim, int64_t pages, int64_t heads, int64_t page_rows,
                       const TensorStrides& strides);

}  // namespace attn
