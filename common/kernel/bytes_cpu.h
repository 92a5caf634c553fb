// For kernels on the CPU: functions that load elements of 8 bits as floats.
#pragma once

#include "common/kernel/byte_types.h"
#include "common/kernel/cpu.h"

/// Returns what load_elements() gives for an element whose value is 1.
constexpr float unit_of_type(int type) { return type == E4M3 ? 0x1p-8f : 1.0f; }

/// Loads N elements from `index` on. The type of the elements is TYPE: an ElementType, or E4M3, or INT8. Returns the
/// elements as floats, multiplied by unit_of_type(TYPE). The NaNs of E4M3 count as 480 and -480: a check for NaN would
/// take 75 % more time. rows_have_nan() checks for NaN.
template <int TYPE, int N>
INLINE Vector<float, N> load_elements(const void* tensor, long long index) {
  if constexpr (bytes_of_type(TYPE) > 1) {
    return load_floats<TYPE, N>(tensor, index);
  } else {
    const auto bytes = load<Vector<signed char, N>>(static_cast<const signed char*>(tensor) + index);
    if constexpr (TYPE == INT8) {
      return __builtin_convertvector(bytes, Vector<float, N>);
    } else {
      // Moves exponent and mantissa to their places in an f16. The bias of f16 is 8 more than the bias of E4M3, so the
      // f16 is the value times 2^-8. After the shift bits 14 and 15 both hold the sign; bit 14 is cleared. The
      // conversion handles denormals of f16 even if denormals of f32 count as 0.
      const auto bits = (__builtin_convertvector(bytes, Vector<short, N>) << 7) & static_cast<short>(0xbfff);
      return __builtin_convertvector(reinterpret_cast<Vector<_Float16, N>>(bits), Vector<float, N>);
    }
  }
}

/// Loads one element. Returns the element multiplied by unit_of_type(TYPE), as load_elements() does. But here a NaN of
/// E4M3 stays NaN.
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

/// Whether one of `count` rows has a NaN. A row has DIM elements of E4M3, and DIM is a multiple of N.
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
