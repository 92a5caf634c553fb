// Host tensors: element types, the two layouts, seeded random values and safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attn {

/// e4m3 (OCP 8-bit floating point, 2023) and int8 have no infinities: numbers beyond +-448 or +-127 become +-448 or
/// +-127. int8 has no NaN: NaN becomes 0.
enum class DType { f32, f16, bf16, e4m3, int8 };
std::string_view name(DType dtype);
size_t size_bytes(DType dtype);
/// Returns the number that stands for the dtype in a function constant (common/source/kernel_source.h): a value of
/// ElementType (common/kernel/types.h), or E4M3 or INT8 (common/kernel/byte_types.h).
int64_t element_type(DType dtype);
/// Parses a name that name() returns. Throws BadInput for any other text.
DType parse_dtype(std::string_view text);

/// The order of a tensor's dimensions in memory: b batch, h heads, s sequence, d head_dim (innermost).
enum class Layout { bhsd, bshd };
std::string_view name(Layout layout);
/// As parse_dtype().
Layout parse_layout(std::string_view text);

/// Distance in elements between neighbours along each dimension; head_dim is contiguous.
struct Strides {
  int64_t batch, head, row;
};

/// A dense tensor [batch, heads, seq, dim] on the host, in either layout.
struct Tensor {
  int64_t batch = 0, heads = 0, seq = 0, dim = 0;
  DType dtype = DType::f32;
  Layout layout = Layout::bhsd;
  std::vector<std::byte> data;

  /// Returns a tensor of zeros. Throws std::invalid_argument for a negative size, and std::length_error for 2^62 bytes
  /// or more, counting a size of 0 as 1.
  static Tensor zeros(int64_t batch, int64_t heads, int64_t seq, int64_t dim, DType dtype, Layout layout);

  int64_t count() const { return batch * heads * seq * dim; }
  size_t bytes() const { return data.size(); }
  Strides strides() const;
  int64_t offset(int64_t b, int64_t h, int64_t s, int64_t d) const;
  double at(int64_t b, int64_t h, int64_t s, int64_t d) const { return load(offset(b, h, s, d)); }
  void set(int64_t b, int64_t h, int64_t s, int64_t d, double value) { store(offset(b, h, s, d), value); }
  /// `index` is a position in memory. store() rounds to nearest, ties to even.
  double load(int64_t index) const;
  void store(int64_t index, double value);
  /// The same for values.size() elements from `index` on; much faster than a call for each element.
  void load(int64_t index, std::span<double> values) const;
  void store(int64_t index, std::span<const double> values);
};

/// Standard normal values, rounded to dtype. Tensors with the same seed and different streams have different values.
/// Before it is rounded, a value depends only on seed, stream and (b, h, s, d).
Tensor random_tensor(int64_t batch, int64_t heads, int64_t seq, int64_t dim, DType dtype, Layout layout, uint64_t seed,
                     uint64_t stream);

/// The tensor's values in another dtype or layout.
Tensor convert(const Tensor& tensor, DType dtype, Layout layout);

/// One tensor of a safetensors file: any rank, C order.
struct StoredTensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

/// Reads the tensors `names` of a safetensors file (https://huggingface.co/docs/safetensors: 8-byte little-endian
/// header size, JSON header, data). Other tensors of the file may have any dtype and are not read. Throws BadInput with
/// one line that names the file and the error: a missing or truncated file, a header that contradicts itself or the
/// file's size, a missing name, or a named tensor with a dtype other than F32, F16 or BF16.
std::map<std::string, StoredTensor> read_safetensors(const std::string& path, const std::vector<std::string>& names);

/// Like read_safetensors(), but reads the file's bytes from memory. `origin` names the bytes in messages.
std::map<std::string, StoredTensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& origin,
                                                      const std::vector<std::string>& names);

/// Writes the file under a temporary name and renames it. Throws BadInput if the file cannot be written, and
/// std::invalid_argument for a tensor whose data does not match its shape, or whose dtype has 8 bits.
void write_safetensors(const std::string& path, const std::map<std::string, StoredTensor>& tensors);

}  // namespace attn
