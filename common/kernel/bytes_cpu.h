// The cpu dialect: elements of 8 bits as floats.
#pragma once

#include "common/kernel/byte_types.h"
#include "common/kernel/cpu.h"

/// What load_elements() gives of an element of 1.
constexpr float unit_of_type(int type) { return type == E4M3 ? 0x1p-8f : 1.0f; }

/// N elements of type TYPE (an ElementType, E4M3, INT8) at `index`, as floats, times unit_of_type(TYPE). The NaN of
/// E4M3 becomes 480: looking for it here would take three quarters longer (rows_have_nan).
template <int TYPE, int N>
INLINE Vector<float, N> load_elements(const void* tensor, long long index) {
  if constexpr (bytes_of_type(TYPE) > 1) {
    return load_floats<TYPE, N>(tensor, index);
  } else {
    const auto bytes = load<Vector<signed char, N>>(static_cast<const signed char*>(tensor) + index);
    if constexpr (TYPE == INT8) {
      return __builtin_convertvector(bytes, Vector<float, N>);
    } else {
      // Exponent and mantissa to those of an f16, whose bias is 8 larger; bits 14 and 15 are the sign, and 14 is not
      // its place. Denormals of f16 are converted also where those of f32 count as 0.
      const auto bits = (__builtin_convertvector(bytes, Vector<short, N>) << 7) & static_cast<short>(0xbfff);
      return __builtin_convertvector(reinterpret_cast<Vector<_Float16, N>>(bits), Vector<float, N>);
    }
  }
}

/// One element, a NaN of E4M3 as NaN.
template <int TYPE>
INLINE float load_element(const void* tensor, long long index) {
  if constexpr (bytes_of_type(TYPE) > 1) {
    return load_float<TYPE>(tensor, index);
  } else {
    const signed char four[4] = {static_cast<const signed char*>(tensor)[index]};
    if (TYPE == E4M3 && (four[0] & 0x7f) == 0x7f) return __builtin_nanf("");
    return load_elements<TYPE, 4>(four, 0)[0];  // LLVM 19 does not compile a vector of one f16 for AArch64
  }
}

/// Whether one of `count` rows of DIM elements of E4M3, DIM a multiple of N, has a NaN.
template <int DIM, int N>
INLINE bool rows_have_nan(const char* const* rows, int count) {
  using Bytes = Vector<unsigned char, N>;
  Bytes largest = {};
  for (int i = 0; i < count; ++i) {
    const auto* const row = reinterpret_cast<const unsigned char*>(rows[i]);
    UNROLL for (int d = 0; d < DIM; d += N) largest = __builtin_elementwise_max(largest, load<Bytes>(row + d) & 0x7f);
  }
  return __builtin_reduce_max(largest) == 0x7f;
}
