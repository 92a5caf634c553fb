#include "common/paged/quantise.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common/base/divided_up.h"
#include "common/base/parallel.h"

namespace attn {
namespace {

double largest_of(DType dtype) {
  if (dtype == DType::e4m3) return 448;
  if (dtype == DType::int8) return 127;
  throw std::invalid_argument("a cache with scales is e4m3 or int8");
}

int64_t pages_of(const Tensor& tensor, int64_t page_size) { return divided_up(tensor.seq, page_size); }

/// Calls body(b, page, h, at) on the host's threads; `at` is the index of the scale.
template <typename Body>
void for_pages(const Tensor& tensor, int64_t page_size, const Body& body) {
  const int64_t pages = pages_of(tensor, page_size);
  parallel_for(tensor.batch * pages * tensor.heads, 16, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      body(at / tensor.heads / pages, at / tensor.heads % pages, at % tensor.heads, static_cast<size_t>(at));
    }
  });
}

/// Returns the elements of `tensor` in `dtype`, each divided (if `divides`) or multiplied by the scale of its page and
/// head.
Tensor rescaled(const Tensor& tensor, DType dtype, int64_t page_size, std::span<const float> scales, bool divides) {
  Tensor result = Tensor::zeros(tensor.batch, tensor.heads, tensor.seq, tensor.dim, dtype, tensor.layout);
  for_pages(tensor, page_size, [&](int64_t b, int64_t page, int64_t h, size_t at) {
    const double scale = scales[at];
    std::vector<double> row(static_cast<size_t>(tensor.dim));
    for (int64_t token = page * page_size; token < std::min((page + 1) * page_size, tensor.seq); ++token) {
      tensor.load(tensor.offset(b, h, token, 0), row);
      for (double& value : row) value = divides ? static_cast<float>(value / scale) : value * scale;
      result.store(result.offset(b, h, token, 0), row);
    }
  });
  return result;
}

}  // namespace

std::vector<float> page_scales(const Tensor& values, DType dtype, int64_t page_size, std::span<const int64_t> lengths) {
  const double largest = largest_of(dtype);
  std::vector<float> scales(static_cast<size_t>(values.batch * pages_of(values, page_size) * values.heads));
  for_pages(values, page_size, [&](int64_t b, int64_t page, int64_t h, size_t at) {
    double most = 0;
    std::vector<double> row(static_cast<size_t>(values.dim));
    const int64_t end = std::min((page + 1) * page_size, lengths[static_cast<size_t>(b)]);
    for (int64_t token = page * page_size; token < end; ++token) {
      values.load(values.offset(b, h, token, 0), row);
      for (const double value : row) most = std::max(most, std::abs(value));
    }
    const auto scale = static_cast<float>(most / largest);
    scales[at] = scale > 0 ? scale : 1;
  });
  return scales;
}

Tensor quantised(const Tensor& values, DType dtype, int64_t page_size, std::span<const float> scales) {
  return rescaled(values, dtype, page_size, scales, true);
}

Tensor dequantised(const Tensor& stored, int64_t page_size, std::span<const float> scales) {
  return rescaled(stored, DType::f32, page_size, scales, false);
}

}  // namespace attn
