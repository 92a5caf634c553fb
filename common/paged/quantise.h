// Caches of 8 bits: an element is a stored number times the scale of its page and head. A sequence of a contiguous
// cache counts as one page.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/data/tensor.h"

namespace attn {

/// Returns the scales, [batch, pages of a sequence, heads]. A scale is the largest magnitude of the head's elements on
/// the page, divided by 448 for e4m3 and by 127 for int8; it is 1 if these elements are all 0, or if the page has no
/// token. values: [batch, heads, tokens, dim]; of sequence b only the first lengths[b] tokens count. Throws
/// std::invalid_argument for a dtype other than e4m3 and int8.
std::vector<float> page_scales(const Tensor& values, DType dtype, int64_t page_size, std::span<const int64_t> lengths);

/// Returns each value divided by the scale of its page and head. The quotient is rounded to f32 and then to dtype, each
/// time to nearest even, as kernels do.
Tensor quantised(const Tensor& values, DType dtype, int64_t page_size, std::span<const float> scales);

/// Returns each stored number times the scale of its page and head, in f32.
Tensor dequantised(const Tensor& stored, int64_t page_size, std::span<const float> scales);

}  // namespace attn
