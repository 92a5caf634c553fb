#include "common/backends/cuda/tensor_map.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/error.h"
#ifdef ATTN_HAS_CUDA
#include "common/backends/cuda/driver.h"
#endif

namespace attn {

#ifdef ATTN_HAS_CUDA

namespace {

CUtensorMapDataType data_type(ElementType element) {
  switch (element) {
    case F32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case F16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case BF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  }
  throw BadInput("tensor map: no such element type");
}

CUtensorMapSwizzle swizzle_mode(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case Swizzle::bytes_32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case Swizzle::bytes_64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::bytes_128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  throw BadInput("tensor map: no such swizzle");
}

// Returns the largest number of bytes that a row of the box may have with a swizzle. A box without a swizzle has no
// such limit.
uint64_t max_inner_bytes(Swizzle swizzle) {
  return swizzle == Swizzle::none ? UINT64_MAX : uint64_t{16} << static_cast<int>(swizzle);
}

// Checks a condition, because the driver's message is only "invalid argument". The message is composed only if the
// condition is false, because each launch makes maps and must be quick.
template <typename... Values>
void require(bool condition, fmt::format_string<Values...> text, Values&&... values) {
  if (!condition) throw BadInput("tensor map: " + fmt::format(text, std::forward<Values>(values)...));
}

}  // namespace

TensorMap make_tensor_map(const TensorMapLayout& layout) {
  const auto& [base, element, dims, strides_bytes, box, swizzle] = layout;
  constexpr size_t most = 5;
  const size_t rank = dims.size();
  require(rank >= 1 && rank <= most, "{} dimensions are not allowed; 1 to 5", rank);
  require(strides_bytes.size() == rank - 1 && box.size() == rank,
          "{} dimensions take {} strides and a box of {}, not {} and {}", rank, rank - 1, rank, strides_bytes.size(),
          box.size());
  require(reinterpret_cast<uintptr_t>(base) % 16 == 0, "the base address is not a multiple of 16");
  for (const uint64_t dim : dims) {
    require(dim >= 1 && dim <= uint64_t{1} << 32, "dimension {} is not allowed; 1 to 2^32", dim);
  }
  std::array<cuuint64_t, most> global_dims{}, strides{};
  for (size_t i = 0; i + 1 < rank; ++i) {
    strides[i] = dims[i + 1] == 1 ? 16 : strides_bytes[i];
    require(strides[i] % 16 == 0 && strides[i] < uint64_t{1} << 40,
            "a stride of {} bytes is not allowed; multiples of 16 below 2^40", strides[i]);
  }
  for (const uint32_t edge : box) require(edge >= 1 && edge <= 256, "a box edge of {} is not allowed; 1 to 256", edge);
  const uint64_t inner_bytes = uint64_t{box[0]} * (element == F32 ? 4 : 2);
  require(inner_bytes % 16 == 0 && inner_bytes <= max_inner_bytes(swizzle),
          "a row of the box has {} bytes; allowed are multiples of 16, up to the number of bytes of the swizzle",
          inner_bytes);

  std::array<cuuint32_t, most> box_dims{}, element_strides{};
  std::ranges::copy(dims, global_dims.begin());
  std::ranges::copy(box, box_dims.begin());
  element_strides.fill(1);
  CUtensorMap encoded;
  const CUresult result = cuda_driver().cuTensorMapEncodeTiled(
      &encoded, data_type(element), static_cast<cuuint32_t>(rank), const_cast<void*>(base), global_dims.data(),
      strides.data(), box_dims.data(), element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_mode(swizzle),
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw BadInput(fmt::format("tensor map: the driver does not take dims {}, strides {} and box {}: {}",
                               fmt::join(dims, "x"), fmt::join(strides_bytes, ","), fmt::join(box, "x"),
                               describe(result)));
  }
  TensorMap map;
  static_assert(sizeof map == sizeof encoded);
  std::memcpy(&map, &encoded, sizeof map);
  return map;
}

#else

TensorMap make_tensor_map(const TensorMapLayout&) { throw DeviceMissing("tensor maps: this build has no CUDA device"); }

#endif

TensorMap panel_map(const void* base, DType dtype, int64_t head_dim, int64_t batch, int64_t heads, int64_t rows,
                    const TensorStrides& strides, int64_t box_rows, int64_t box_panels) {
  constexpr int64_t panel_columns = 64;
  const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * sizeof(uint16_t); };
  const bool whole = head_dim % panel_columns == 0;
  const int64_t columns = whole ? panel_columns : head_dim;
  return make_tensor_map(
      {.base = base,
       .element = static_cast<ElementType>(element_type(dtype)),
       .dims = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), static_cast<uint64_t>(head_dim / columns),
                static_cast<uint64_t>(heads), static_cast<uint64_t>(batch)},
       .strides_bytes = {bytes(strides.row), bytes(panel_columns), bytes(strides.head), bytes(strides.batch)},
       .box = {panel_columns, static_cast<uint32_t>(box_rows), static_cast<uint32_t>(whole ? box_panels : 1), 1, 1},
       .swizzle = Swizzle::bytes_128});
}

TensorMap byte_map(const void* base, int64_t head_dim, int64_t batch, int64_t heads, int64_t rows,
                   const TensorStrides& strides, int64_t box_rows) {
  const auto size = [](int64_t number) { return static_cast<uint64_t>(number); };
  return make_tensor_map({.base = base,
                          .element = F16,
                          .dims = {size(head_dim / 2), size(rows), 1, size(heads), size(batch)},
                          .strides_bytes = {size(strides.row), 16, size(strides.head), size(strides.batch)},
                          .box = {static_cast<uint32_t>(head_dim / 2), static_cast<uint32_t>(box_rows), 1, 1, 1}});
}

GroupedMap grouped_map(const void* base, DType dtype, int64_t head_dim, int64_t pages, int64_t heads, int64_t page_rows,
                       const TensorStrides& strides) {
  constexpr int64_t panel_columns = 64, group_rows = 8;
  const int64_t panels = head_dim / panel_columns, group = group_rows * strides.row;
  const int64_t apart = group > 0 && strides.batch % group == 0 ? strides.batch / group : 0;
  if (apart * group_rows < page_rows || pages * apart > std::numeric_limits<int>::max()) {
    return {panel_map(base, dtype, head_dim, pages, heads, page_rows, strides, group_rows, panels), 0};
  }
  const auto bytes = [](int64_t elements) { return static_cast<uint64_t>(elements) * sizeof(uint16_t); };
  return {
      make_tensor_map({.base = base,
                       .element = static_cast<ElementType>(element_type(dtype)),
                       .dims = {panel_columns, group_rows, static_cast<uint64_t>(panels), static_cast<uint64_t>(heads),
                                static_cast<uint64_t>(pages * apart)},
                       .strides_bytes = {bytes(strides.row), bytes(panel_columns), bytes(strides.head), bytes(group)},
                       .box = {panel_columns, group_rows, static_cast<uint32_t>(panels), 1,
                               static_cast<uint32_t>(page_rows / group_rows)},
                       .swizzle = Swizzle::bytes_128}),
      static_cast<int>(apart)};
}

}  // namespace attn
