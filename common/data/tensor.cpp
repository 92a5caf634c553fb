#include "common/data/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <stdexcept>

#include "common/base/error.h"
#include "common/base/parallel.h"
#include "common/kernel/byte_types.h"

namespace attn {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors and safetensors files are little-endian");

struct Float {
  using Bits = uint32_t;
  static double decode(Bits bits) { return std::bit_cast<float>(bits); }
  static Bits encode(double value) { return std::bit_cast<Bits>(static_cast<float>(value)); }
};

/// A floating-point format of 16 bits, or e4m3. In e4m3 the largest exponent belongs to numbers too; only the largest
/// mantissa with this exponent means NaN. encode() rounds a double to the format in one step, because a conversion to
/// float first would round twice.
template <typename Unsigned, int exponent_bits, int mantissa_bits>
struct SmallFloat {
  using Bits = Unsigned;
  static constexpr int bits_without_sign = exponent_bits + mantissa_bits;
  static_assert(1 + bits_without_sign == 8 * sizeof(Bits));
  static constexpr bool has_infinity = sizeof(Bits) == 2;
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  static constexpr uint64_t sign_bit = uint64_t{1} << bits_without_sign;
  static constexpr uint64_t not_finite =  // the least magnitude that is not finite
      has_infinity ? ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits : sign_bit - 1;
  static constexpr uint64_t quiet_nan = not_finite | uint64_t{1} << (mantissa_bits - 1);
  static constexpr uint64_t most = has_infinity ? not_finite : not_finite - 1;

  static double decode(Bits bits) {
    constexpr double smallest = std::bit_cast<double>(uint64_t{1023 + 1 - bias - mantissa_bits} << 52);
    constexpr int shift = 52 - mantissa_bits;
    const uint64_t sign = (bits & sign_bit) << (63 - bits_without_sign);
    const uint64_t magnitude = bits & (sign_bit - 1);
    uint64_t wide;
    if (magnitude >= not_finite) {
      wide = uint64_t{0x7ff} << 52 | magnitude << shift;
    } else if (magnitude >> mantissa_bits == 0) {
      wide = std::bit_cast<uint64_t>(static_cast<double>(magnitude) * smallest);
    } else {
      wide = (magnitude << shift) + (uint64_t{1023 - bias} << 52);
    }
    return std::bit_cast<double>(wide | sign);
  }

  static Bits encode(double value) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    const uint64_t sign = bits >> (63 - bits_without_sign) & sign_bit;
    if (std::isnan(value)) return static_cast<Bits>(sign | quiet_nan);

    // Near `value`, numbers of the format are 2^shift units of the double's significand apart. Subnormal numbers have
    // the spacing of the smallest normal numbers, so below the normal range `shift` grows.
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
    const int subnormal_by = std::max(0, 1 - bias - exponent);
    const int shift = 52 - mantissa_bits + subnormal_by;
    if (shift > 53) return static_cast<Bits>(sign);  // less than half of the smallest step
    const uint64_t significand = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
    const uint64_t to_even = (uint64_t{1} << (shift - 1)) - 1 + (significand >> shift & 1);
    // `rounded` still has the implicit bit. The bit adds 1 to the exponent, hence bias - 1.
    const uint64_t rounded = (significand + to_even) >> shift;
    const uint64_t magnitude = (static_cast<uint64_t>(exponent + subnormal_by + bias - 1) << mantissa_bits) + rounded;
    return static_cast<Bits>(sign | std::min(magnitude, most));
  }
};

struct Int8 {
  using Bits = int8_t;
  static double decode(Bits bits) { return bits; }
  static Bits encode(double value) {
    return static_cast<Bits>(std::isnan(value) ? 0 : std::nearbyint(std::clamp(value, -127.0, 127.0)));
  }
};

template <typename Body>
void with_format(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(Float{});
    case DType::f16:
      return body(SmallFloat<uint16_t, 5, 10>{});
    case DType::bf16:
      return body(SmallFloat<uint16_t, 8, 7>{});
    case DType::e4m3:
      return body(SmallFloat<uint8_t, 4, 3>{});
    case DType::int8:
      return body(Int8{});
  }
}

/// Calls body(b, h, s) for every row, on all host threads.
template <typename Body>
void for_rows(const Tensor& tensor, const Body& body) {
  parallel_for(tensor.batch * tensor.heads * tensor.seq, 256, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      body(row / tensor.seq / tensor.heads, row / tensor.seq % tensor.heads, row % tensor.seq);
    }
  });
}

/// One step of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that leaves no visible pattern.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

/// The quantile function of the standard normal distribution. A table divides [0, 1] into `steps` intervals. Within an
/// interval the function is linear; in the first and the last interval, bisection finds the quantile.
class NormalQuantiles {
 public:
  static constexpr int bits = 12, steps = 1 << bits;

  NormalQuantiles() {
    for (int i = 1; i < steps; ++i) values_[static_cast<size_t>(i)] = quantile(static_cast<double>(i) / steps);
  }

  /// The quantile of (step + fraction) / steps.
  double at(size_t step, double fraction) const {
    if (step == 0 || step == steps - 1) return quantile((static_cast<double>(step) + fraction) / steps);
    return values_[step] + fraction * (values_[step + 1] - values_[step]);
  }

 private:
  static double quantile(double probability) {
    double low = -10, high = 10;
    for (int i = 0; i < 56; ++i) {
      const double middle = (low + high) / 2;
      (std::erfc(-middle / std::numbers::sqrt2) / 2 < probability ? low : high) = middle;
    }
    return (low + high) / 2;
  }

  std::array<double, steps> values_{};
};

/// Standard normal values for one row: the quantiles of uniform values. Each step of SplitMix64 gives two values.
void fill_normal(std::span<double> row, uint64_t key) {
  static const NormalQuantiles quantiles;
  constexpr int fraction_bits = 32 - NormalQuantiles::bits;
  for (size_t d = 0; d < row.size(); d += 2) {
    uint64_t random = mix(key ^ d);
    for (size_t i = d; i < std::min(d + 2, row.size()); ++i, random >>= 32) {
      const size_t step = (random & 0xffffffff) >> fraction_bits;
      const double fraction = (static_cast<double>(random & ((1 << fraction_bits) - 1)) + 0.5) / (1 << fraction_bits);
      row[i] = quantiles.at(step, fraction);
    }
  }
}

constexpr std::array<std::string_view, 5> dtype_names = {"f32", "f16", "bf16", "e4m3", "int8"};
constexpr std::array<std::string_view, 2> layout_names = {"bhsd", "bshd"};

}  // namespace

std::string_view name(DType dtype) { return dtype_names.at(static_cast<size_t>(dtype)); }

size_t size_bytes(DType dtype) { return static_cast<size_t>(bytes_of_type(static_cast<int>(element_type(dtype)))); }

int64_t element_type(DType dtype) {
  return std::array{int{F32}, int{F16}, int{BF16}, E4M3, INT8}.at(static_cast<size_t>(dtype));
}

DType parse_dtype(std::string_view text) {
  const auto found = std::find(dtype_names.begin(), dtype_names.end(), text);
  if (found == dtype_names.end())
    throw BadInput(fmt::format("dtype '{}' is not one of {}", text, fmt::join(dtype_names, ", ")));
  return static_cast<DType>(found - dtype_names.begin());
}

std::string_view name(Layout layout) { return layout_names.at(static_cast<size_t>(layout)); }

Layout parse_layout(std::string_view text) {
  const auto found = std::find(layout_names.begin(), layout_names.end(), text);
  if (found == layout_names.end()) throw BadInput(fmt::format("layout '{}' is not one of bhsd, bshd", text));
  return static_cast<Layout>(found - layout_names.begin());
}

Tensor Tensor::zeros(int64_t batch, int64_t heads, int64_t seq, int64_t dim, DType dtype, Layout layout) {
  double bytes = static_cast<double>(size_bytes(dtype));
  for (const int64_t size : {batch, heads, seq, dim}) {
    if (size < 0) throw std::invalid_argument(fmt::format("a tensor size is {}; it must not be negative", size));
    bytes *= static_cast<double>(std::max<int64_t>(size, 1));  // so that a size of 0 does not hide an overflow
  }
  if (bytes >= 0x1p62) throw std::length_error(fmt::format("a tensor of {:.3g} bytes is too large", bytes));
  Tensor tensor{batch, heads, seq, dim, dtype, layout, {}};
  tensor.data.resize(static_cast<size_t>(tensor.count()) * size_bytes(dtype));
  return tensor;
}

Strides Tensor::strides() const {
  if (layout == Layout::bhsd) return {heads * seq * dim, seq * dim, dim};
  return {seq * heads * dim, dim, heads * dim};
}

int64_t Tensor::offset(int64_t b, int64_t h, int64_t s, int64_t d) const {
  const Strides stride = strides();
  return b * stride.batch + h * stride.head + s * stride.row + d;
}

double Tensor::load(int64_t index) const {
  double value;
  load(index, std::span(&value, 1));
  return value;
}

void Tensor::store(int64_t index, double value) { store(index, std::span<const double>(&value, 1)); }

void Tensor::load(int64_t index, std::span<double> values) const {
  with_format(dtype, [&](auto format) {
    typename decltype(format)::Bits bits;
    const std::byte* from = data.data() + static_cast<size_t>(index) * sizeof(bits);
    for (double& value : values) {
      std::memcpy(&bits, from, sizeof(bits));
      value = format.decode(bits);
      from += sizeof(bits);
    }
  });
}

void Tensor::store(int64_t index, std::span<const double> values) {
  with_format(dtype, [&](auto format) {
    std::byte* to = data.data() + static_cast<size_t>(index) * sizeof(format.encode(0));
    for (const double value : values) {
      const auto bits = format.encode(value);
      std::memcpy(to, &bits, sizeof(bits));
      to += sizeof(bits);
    }
  });
}

Tensor random_tensor(int64_t batch, int64_t heads, int64_t seq, int64_t dim, DType dtype, Layout layout, uint64_t seed,
                     uint64_t stream) {
  Tensor tensor = Tensor::zeros(batch, heads, seq, dim, dtype, layout);
  for_rows(tensor, [&](int64_t b, int64_t h, int64_t s) {
    static thread_local std::vector<double> row;
    row.resize(static_cast<size_t>(dim));
    uint64_t key = mix(seed);
    for (const uint64_t part : {stream, static_cast<uint64_t>(b), static_cast<uint64_t>(h), static_cast<uint64_t>(s)}) {
      key = mix(key ^ part);
    }
    fill_normal(row, key);
    tensor.store(tensor.offset(b, h, s, 0), row);
  });
  return tensor;
}

Tensor convert(const Tensor& tensor, DType dtype, Layout layout) {
  Tensor result = Tensor::zeros(tensor.batch, tensor.heads, tensor.seq, tensor.dim, dtype, layout);
  for_rows(tensor, [&](int64_t b, int64_t h, int64_t s) {
    static thread_local std::vector<double> row;
    row.resize(static_cast<size_t>(tensor.dim));
    tensor.load(tensor.offset(b, h, s, 0), row);
    result.store(result.offset(b, h, s, 0), row);
  });
  return result;
}

}  // namespace attn
