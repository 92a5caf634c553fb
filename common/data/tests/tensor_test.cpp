#include "common/data/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <tuple>

#include "common/base/error.h"

namespace attn {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

Tensor one_element(DType dtype) { return Tensor::zeros(1, 1, 1, 1, dtype, Layout::bhsd); }

uint16_t encode(DType dtype, double value) {
  Tensor tensor = one_element(dtype);
  tensor.store(0, value);
  uint16_t bits;
  std::memcpy(&bits, tensor.data.data(), sizeof(bits));
  return bits;
}

double decode(DType dtype, uint16_t bits) {
  Tensor tensor = one_element(dtype);
  std::memcpy(tensor.data.data(), &bits, sizeof(bits));
  return tensor.load(0);
}

uint16_t infinity_bits(DType dtype) { return dtype == DType::f16 ? 0x7c00 : 0x7f80; }

TEST(DTypeTest, NamesRoundTripAndOtherTextsAreRefused) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::int8}) {
    EXPECT_EQ(parse_dtype(name(dtype)), dtype);
  }
  for (const Layout layout : {Layout::bhsd, Layout::bshd}) EXPECT_EQ(parse_layout(name(layout)), layout);
  EXPECT_EQ(name(DType::bf16), "bf16");
  EXPECT_EQ(name(Layout::bshd), "bshd");
  EXPECT_EQ(size_bytes(DType::f32), 4u);
  EXPECT_EQ(size_bytes(DType::f16), 2u);
  EXPECT_EQ(size_bytes(DType::bf16), 2u);
  EXPECT_EQ(size_bytes(DType::e4m3), 1u);
  EXPECT_EQ(size_bytes(DType::int8), 1u);
  for (const char* text : {"", "F32", "f", "f64"}) EXPECT_THROW(parse_dtype(text), BadInput) << text;
  for (const char* text : {"", "BHSD", "bhs"}) EXPECT_THROW(parse_layout(text), BadInput) << text;
}

TEST(ConversionTest, KnownValuesOf16Bits) {
  using enum DType;
  for (const auto& [dtype, value, bits] :
       {std::tuple{f16, 1.0, 0x3c00},
        {f16, -2.0, 0xc000},
        {f16, 0.1, 0x2e66},
        {f16, 65504.0, 0x7bff},
        {f16, 65519.99, 0x7bff},  // less than half a step above the largest
        {f16, 65520.0, 0x7c00},   // the tie goes to inf
        {f16, 0x1p-14, 0x0400},   // smallest normal
        {f16, 0x1p-24, 0x0001},   // smallest subnormal
        {f16, 0x1p-25, 0x0000},   // halfway between 0 and the smallest subnormal; 0 is even
        {f16, std::nextafter(0x1p-25, 1), 0x0001},
        {f16, 0x1.8p-24, 0x0002},  // a tie between two subnormals
        {f16, -0.0, 0x8000},
        {bf16, 1.0, 0x3f80},
        {bf16, -3.140625, 0xc049},
        {bf16, 0x1.fep127, 0x7f7f},
        {bf16, 0x1.ffp127, 0x7f80},
        {bf16, 0x1p-126, 0x0080},
        {bf16, 0x1p-133, 0x0001},
        {bf16, 0x1p-134, 0x0000}}) {
    EXPECT_EQ(encode(dtype, value), bits) << name(dtype) << " " << value;
  }
  EXPECT_EQ(decode(f16, 0x03ff), 1023 * 0x1p-24);
  EXPECT_EQ(decode(bf16, 0x007f), 127 * 0x1p-133);
}

/// encode_byte() and decode_byte() are for types of 8 bits, encode() and decode() for types of 16 bits.
int encode_byte(DType dtype, double value) {
  Tensor tensor = one_element(dtype);
  tensor.store(0, value);
  return std::to_integer<int>(tensor.data.front());
}
double decode_byte(DType dtype, int code) {
  Tensor tensor = one_element(dtype);
  tensor.data.front() = static_cast<std::byte>(code);
  return tensor.load(0);
}

TEST(ConversionTest, KnownE4m3Values) {
  EXPECT_EQ(encode_byte(DType::e4m3, 1.0), 0x38);
  EXPECT_EQ(encode_byte(DType::e4m3, -2.0), 0xc0);
  EXPECT_EQ(encode_byte(DType::e4m3, 448), 0x7e);
  EXPECT_EQ(encode_byte(DType::e4m3, 0x1p-6), 0x08);  // smallest normal
  EXPECT_EQ(encode_byte(DType::e4m3, 0x1p-9), 0x01);  // smallest subnormal
  EXPECT_EQ(encode_byte(DType::e4m3, -0.0), 0x80);
  for (const double large : {464.0, 480.0, 1e300, inf}) {
    EXPECT_EQ(encode_byte(DType::e4m3, large), 0x7e) << large;
    EXPECT_EQ(encode_byte(DType::e4m3, -large), 0xfe) << large;
  }
  EXPECT_EQ(encode_byte(DType::e4m3, std::nan("")), 0x7f);
  EXPECT_TRUE(std::isnan(decode_byte(DType::e4m3, 0x7f)));
  EXPECT_TRUE(std::isnan(decode_byte(DType::e4m3, 0xff)));
}

TEST(ConversionTest, KnownInt8Values) {
  for (const auto& [value, want] : {std::pair{0.5, 0.},
                                    {1.5, 2.},
                                    {-2.5, -2.},
                                    {126.5, 126.},
                                    {127.5, 127.},
                                    {-128., -127.},
                                    {inf, 127.},
                                    {-1e300, -127.},
                                    {std::nan(""), 0.}}) {
    EXPECT_EQ(decode_byte(DType::int8, encode_byte(DType::int8, value)), want) << value;
  }
  for (int value = -127; value <= 127; ++value) {
    EXPECT_EQ(encode_byte(DType::int8, value), value & 0xff);
    EXPECT_EQ(decode_byte(DType::int8, value & 0xff), value);
  }
}

TEST(ConversionTest, E4m3RoundsToNearestEvenBetweenAllNeighbours) {
  for (int low = 0; low < 0x7e; ++low) {
    const int high = low + 1;
    const double middle = (decode_byte(DType::e4m3, low) + decode_byte(DType::e4m3, high)) / 2;
    ASSERT_LT(decode_byte(DType::e4m3, low), middle);
    EXPECT_EQ(encode_byte(DType::e4m3, decode_byte(DType::e4m3, high)), high);
    EXPECT_EQ(encode_byte(DType::e4m3, middle), low % 2 == 0 ? low : high) << low;
    EXPECT_EQ(encode_byte(DType::e4m3, std::nextafter(middle, 0)), low);
    EXPECT_EQ(encode_byte(DType::e4m3, -std::nextafter(middle, inf)), high | 0x80);
  }
}

TEST(ConversionTest, F32RoundsToNearestEven) {
  Tensor tensor = one_element(DType::f32);
  for (const auto& [value, want] : {std::pair{0.1, double{0.1f}},
                                    {1 + 0x1p-24, 1.0},
                                    {1 + 0x1.8p-23, 1 + 0x1p-22},
                                    {1e300, inf},
                                    {0x1p-149, 0x1p-149},
                                    {0x1p-150, 0.0}}) {
    tensor.store(0, value);
    EXPECT_EQ(tensor.load(0), want) << value;
  }
}

TEST(ConversionTest, SpecialsKeepTheirKindAndSign) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Tensor tensor = one_element(dtype);
    for (const double sign : {1.0, -1.0}) {
      for (const double value : {inf, 1e300, std::numeric_limits<double>::max()}) {
        tensor.store(0, sign * value);
        EXPECT_EQ(tensor.load(0), sign * inf) << name(dtype);
      }
      for (const double value : {0.0, 1e-300, std::numeric_limits<double>::denorm_min()}) {
        tensor.store(0, sign * value);
        EXPECT_EQ(tensor.load(0), 0) << name(dtype);
        EXPECT_EQ(std::signbit(tensor.load(0)), sign < 0) << name(dtype);
      }
      tensor.store(0, std::copysign(std::numeric_limits<double>::quiet_NaN(), sign));
      EXPECT_TRUE(std::isnan(tensor.load(0))) << name(dtype);
      EXPECT_EQ(std::signbit(tensor.load(0)), sign < 0) << name(dtype);
    }
    // The payload lies in the bits that are dropped: the NaN must not become inf.
    tensor.store(0, std::bit_cast<double>(uint64_t{0x7ff0000000000001}));
    EXPECT_TRUE(std::isnan(tensor.load(0))) << name(dtype);
  }
}

TEST(ConversionTest, EveryF16AndBf16ValueSurvives) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const double value = decode(dtype, static_cast<uint16_t>(bits));
      if ((bits & 0x7fff) > infinity_bits(dtype)) {
        ASSERT_TRUE(std::isnan(value)) << bits;
        ASSERT_GT(encode(dtype, value) & 0x7fff, infinity_bits(dtype)) << bits;
      } else {
        ASSERT_EQ(encode(dtype, value), bits) << name(dtype);
      }
    }
  }
}

// Takes the midpoint between two neighbours and the doubles next to it on both sides, so a conversion that first rounds
// to float fails.
TEST(ConversionTest, RoundsToNearestEvenBetweenAllNeighbours) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (uint16_t low = 0; low + 1 < infinity_bits(dtype); ++low) {
      const uint16_t high = low + 1, even = low % 2 == 0 ? low : high;
      const double middle = (decode(dtype, low) + decode(dtype, high)) / 2;
      ASSERT_LT(decode(dtype, low), middle);
      ASSERT_EQ(encode(dtype, middle), even) << name(dtype) << " " << low;
      ASSERT_EQ(encode(dtype, std::nextafter(middle, 0)), low) << name(dtype) << " " << low;
      ASSERT_EQ(encode(dtype, std::nextafter(middle, inf)), high) << name(dtype) << " " << low;
      ASSERT_EQ(encode(dtype, -middle), even | 0x8000) << name(dtype) << " " << low;
    }
  }
}

TEST(TensorTest, StridesAndOffsetsFollowTheLayout) {
  const Tensor bhsd = Tensor::zeros(2, 3, 5, 7, DType::f16, Layout::bhsd);
  EXPECT_EQ(bhsd.strides().batch, 3 * 5 * 7);
  EXPECT_EQ(bhsd.strides().head, 5 * 7);
  EXPECT_EQ(bhsd.strides().row, 7);
  const Tensor bshd = Tensor::zeros(2, 3, 5, 7, DType::f16, Layout::bshd);
  EXPECT_EQ(bshd.strides().batch, 3 * 5 * 7);
  EXPECT_EQ(bshd.strides().head, 7);
  EXPECT_EQ(bshd.strides().row, 3 * 7);
  EXPECT_EQ(bshd.offset(1, 2, 4, 6), 105 + 2 * 7 + 4 * 21 + 6);
  for (const Tensor* tensor : {&bhsd, &bshd}) {
    EXPECT_EQ(tensor->offset(1, 2, 4, 6), tensor->count() - 1);
    EXPECT_EQ(tensor->bytes(), 2u * 2 * 3 * 5 * 7);
  }
}

TEST(TensorTest, SeveralElementsAreLoadedAndStoredLikeSingleOnes) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Tensor tensor = Tensor::zeros(1, 1, 4, 5, dtype, Layout::bhsd);
    const std::vector<double> written = {1, -2, 3.5};
    tensor.store(7, written);
    std::vector<double> read(5);
    tensor.load(6, read);
    EXPECT_EQ(read, (std::vector<double>{0, 1, -2, 3.5, 0})) << name(dtype);
    EXPECT_EQ(tensor.load(8), -2) << name(dtype);
  }
}

TEST(TensorTest, ImpossibleSizesAreRefused) {
  EXPECT_THROW(Tensor::zeros(1, -1, 1, 1, DType::f32, Layout::bhsd), std::invalid_argument);
  const int64_t big = int64_t{1} << 31;
  EXPECT_THROW(Tensor::zeros(big, big, big, 1, DType::f32, Layout::bhsd), std::length_error);
  EXPECT_THROW(Tensor::zeros(big, big, big, 0, DType::f32, Layout::bhsd), std::length_error);
  EXPECT_EQ(random_tensor(2, 3, 0, 4, DType::f32, Layout::bhsd, 1, 0).bytes(), 0u);
  EXPECT_EQ(random_tensor(2, 3, 4, 0, DType::f32, Layout::bhsd, 1, 0).bytes(), 0u);
}

TEST(RandomTensorTest, ValuesAreStandardNormal) {
  // Values are made in pairs. With an odd head_dim a row's last value is one half of a pair.
  const Tensor tensor = random_tensor(2, 4, 1000, 65, DType::f32, Layout::bhsd, 1, 0);
  double mean = 0, square = 0, fourth = 0, beyond_2 = 0, largest = 0;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double x = tensor.load(i);
    mean += x, square += x * x, fourth += x * x * x * x;
    beyond_2 += std::abs(x) > 2;
    largest = std::max(largest, std::abs(x));
  }
  const double n = static_cast<double>(tensor.count());  // 520,000: 5 standard errors of the mean are 0.007
  EXPECT_NEAR(mean / n, 0, 0.007);
  EXPECT_NEAR(square / n, 1, 0.01);
  EXPECT_NEAR(fourth / n, 3, 0.07);
  EXPECT_NEAR(beyond_2 / n, 0.0455, 0.0015);
  EXPECT_GT(largest, 4);
  EXPECT_LT(largest, 7);
}

TEST(RandomTensorTest, NeighboursAreUncorrelated) {
  const Tensor t = random_tensor(2, 16, 100, 64, DType::f32, Layout::bhsd, 3, 0);
  double along_dim = 0, along_seq = 0, along_head = 0, across_streams = 0, n = 0;
  const Tensor other = random_tensor(2, 16, 100, 64, DType::f32, Layout::bhsd, 3, 1);
  for (int64_t h = 0; h + 1 < t.heads; ++h) {
    for (int64_t s = 0; s + 1 < t.seq; ++s) {
      for (int64_t d = 0; d + 1 < t.dim; ++d) {
        const double x = t.at(1, h, s, d);
        along_dim += x * t.at(1, h, s, d + 1);
        along_seq += x * t.at(1, h, s + 1, d);
        along_head += x * t.at(1, h + 1, s, d);
        across_streams += x * other.at(1, h, s, d);
        ++n;
      }
    }
  }
  const double limit = 5 / std::sqrt(n);
  for (const double sum : {along_dim, along_seq, along_head, across_streams}) EXPECT_LT(std::abs(sum / n), limit);
}

TEST(RandomTensorTest, ValueDependsOnSeedStreamAndIndexAlone) {
  const Tensor large = random_tensor(3, 4, 300, 10, DType::f32, Layout::bhsd, 7, 2);
  const Tensor small = random_tensor(2, 2, 3, 10, DType::f32, Layout::bhsd, 7, 2);
  const Tensor other_layout = random_tensor(2, 2, 3, 9, DType::f32, Layout::bshd, 7, 2);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t s = 0; s < 3; ++s) {
        for (int64_t d = 0; d < 9; ++d) {
          EXPECT_EQ(small.at(b, h, s, d), large.at(b, h, s, d));
          EXPECT_EQ(other_layout.at(b, h, s, d), large.at(b, h, s, d));
        }
      }
    }
  }
  EXPECT_EQ(random_tensor(3, 4, 300, 10, DType::f32, Layout::bhsd, 7, 2).data, large.data);
}

// A recorded seed must always give the same inputs.
TEST(RandomTensorTest, ValuesArePinned) {
  const Tensor tensor = random_tensor(2, 2, 2, 2, DType::f32, Layout::bhsd, 42, 1);
  EXPECT_NEAR(tensor.at(0, 0, 0, 0), 0.170641273, 1e-6);
  EXPECT_NEAR(tensor.at(1, 1, 1, 1), 0.247587353, 1e-6);
}

TEST(ConvertTest, ChangesLayoutAndDtype) {
  const Tensor source = random_tensor(2, 3, 4, 5, DType::f32, Layout::bhsd, 9, 0);
  const Tensor result = convert(source, DType::bf16, Layout::bshd);
  EXPECT_EQ(result.dtype, DType::bf16);
  EXPECT_EQ(result.layout, Layout::bshd);
  EXPECT_EQ(result.data, random_tensor(2, 3, 4, 5, DType::bf16, Layout::bshd, 9, 0).data);
  EXPECT_EQ(convert(convert(source, DType::f32, Layout::bshd), DType::f32, Layout::bhsd).data, source.data);
}

}  // namespace
}  // namespace attn
