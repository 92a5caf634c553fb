#include "common/paged/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

namespace attn {
namespace {

TEST(QuantiseTest, EachPageAndHeadHasAScale) {
  // Pages of 2 tokens; the second sequence ends within its first page.
  Tensor values = Tensor::zeros(2, 2, 3, 1, DType::f32, Layout::bhsd);
  for (const auto& [b, h, token, value] :
       {std::tuple{0, 0, 0, 1.}, {0, 0, 1, -4.}, {0, 0, 2, 0.5}, {0, 1, 1, 2.}, {1, 0, 0, 3.}, {1, 0, 1, 100.}}) {
    values.set(b, h, token, 0, value);
  }
  const std::vector<int64_t> lengths = {3, 1};
  const auto by = [](double most, double largest) { return static_cast<float>(most / largest); };
  EXPECT_EQ(page_scales(values, DType::int8, 2, lengths),
            (std::vector<float>{by(4, 127), by(2, 127), by(0.5, 127), 1, by(3, 127), 1, 1, 1}));
  EXPECT_EQ(page_scales(values, DType::e4m3, 2, lengths),
            (std::vector<float>{by(4, 448), by(2, 448), by(0.5, 448), 1, by(3, 448), 1, 1, 1}));
  EXPECT_THROW(page_scales(values, DType::bf16, 2, lengths), std::invalid_argument);
}

TEST(QuantiseTest, ValuesComeBackWithinHalfAStep) {
  const Tensor values = random_tensor(2, 3, 20, 16, DType::f32, Layout::bhsd, 5, 0);
  const std::vector<int64_t> lengths = {20, 20};
  for (const DType dtype : {DType::e4m3, DType::int8}) {
    const std::vector<float> scales = page_scales(values, dtype, 8, lengths);
    const Tensor stored = quantised(values, dtype, 8, scales), back = dequantised(stored, 8, scales);
    EXPECT_EQ(stored.dtype, dtype);
    double most = 0;
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t token = 0; token < 20; ++token) {
          const double scale = scales[static_cast<size_t>((b * 3 + token / 8) * 3 + h)];
          for (int64_t d = 0; d < 16; ++d) {
            const double value = values.at(b, h, token, d);
            // e4m3 has 8 steps from a power of 2 to the next; below 2^-6 the step is the same as just above 2^-6.
            const double half = dtype == DType::int8 ? 0.5 * scale : std::max(std::abs(value) / 16, 0x1p-10 * scale);
            EXPECT_LE(std::abs(back.at(b, h, token, d) - value), half * 1.0001);
            most = std::max(most, std::abs(stored.at(b, h, token, d)));
          }
        }
      }
    }
    EXPECT_EQ(most, dtype == DType::int8 ? 127 : 448);
  }
}

TEST(QuantiseTest, APageOfZerosStaysZeros) {
  const Tensor zeros = Tensor::zeros(1, 1, 4, 8, DType::f32, Layout::bhsd);
  const std::vector<int64_t> lengths = {4};
  for (const DType dtype : {DType::e4m3, DType::int8}) {
    const std::vector<float> scales = page_scales(zeros, dtype, 2, lengths);
    EXPECT_EQ(scales, (std::vector<float>{1, 1}));
    EXPECT_EQ(dequantised(quantised(zeros, dtype, 2, scales), 2, scales).data, zeros.data);
  }
}

}  // namespace
}  // namespace attn
