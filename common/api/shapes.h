// The texts of errors about shapes, for attn.h's functions and for PyTorch's operators.
//
// The texts are made without output streams: in a process with PyTorch for CUDA, writing a number to an output stream
// crashes, because parts of the stream come from another libstdc++.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace attn {

constexpr int64_t unknown_size = INT64_MIN;  // of a tensor in a trace
constexpr int64_t any_size = -1;
/// Stands for two sizes: 1, and `size`.
constexpr int64_t one_or(int64_t size) { return any_size - 1 - size; }

/// A shape that a tensor may have: what its sizes are, separated by commas, and the sizes. A size is a number, any_size
/// or a result of one_or(). Without sizes there may be any sizes.
struct Shape {
  const char* names;
  std::initializer_list<int64_t> sizes = {};
};

constexpr const char* bias_axes = "batch, q_heads, q_len, kv_len rounded up to a multiple of 4";
constexpr const char* mask_axes = "batch, q_heads, q_len, kv_len";

inline bool has_shape(const int64_t* given, int64_t dimensions, const Shape& shape) {
  if (dimensions != static_cast<int64_t>(shape.sizes.size())) return false;
  for (const int64_t size : shape.sizes) {
    const int64_t own = *given++;
    if (size != any_size && size != own && !(size < any_size && (own == 1 || own == one_or(size)))) return false;
  }
  return true;
}

inline std::string shape_text(const int64_t* sizes, int64_t dimensions, std::string (*size_text)(int64_t)) {
  std::string text = "[";
  for (int64_t i = 0; i < dimensions; ++i) text += (i > 0 ? ", " : "") + size_text(sizes[i]);
  return text + "]";
}

/// The error of a tensor whose shape is none of the shapes that are allowed.
inline std::string refused_shape(const char* name, const int64_t* given, int64_t dimensions,
                                 std::initializer_list<Shape> allowed) {
  const auto of_given = [](int64_t size) { return size == unknown_size ? "?" : std::to_string(size); };
  const auto of_allowed = [](int64_t size) {
    const int64_t other = one_or(size);  // one_or() is its own inverse
    return size >= 0          ? std::to_string(size)
           : size == any_size ? "any"
           : other == 1       ? "1"
                              : "1 or " + std::to_string(other);
  };
  std::string text = std::string(name) + ": a shape of " + shape_text(given, dimensions, of_given) +
                     " is not allowed; allowed " + (allowed.size() == 1 ? "is " : "are ");
  for (const Shape& shape : allowed) {
    if (&shape != allowed.begin()) text += &shape + 1 == allowed.end() ? " and " : ", ";
    text += std::string("[") + shape.names + "]";
    if (shape.sizes.size() == 0) continue;
    text += " = " + shape_text(shape.sizes.begin(), static_cast<int64_t>(shape.sizes.size()), of_allowed);
  }
  return text;
}

/// The error of a tensor that must have four dimensions and has not. in_cache: the tensor is a cache.
inline std::string refused_dimensions(const char* name, const int64_t* given, int64_t dimensions,
                                      bool in_cache = false) {
  if (in_cache)
    return refused_shape(name, given, dimensions,
                         {{"batch, kv_heads, capacity, width"}, {"pages, kv_heads, page_size, width"}}) +
           " with a table; with the layout cache_bshd, heads and tokens change places";
  return refused_shape(name, given, dimensions, {{"batch, heads, tokens, width"}, {"batch, tokens, heads, width"}}) +
         " with the layout bshd";
}

}  // namespace attn
