// The Metal dialect (Metal Shading Language 3.1 or later): functions for kernels that run on Apple's GPUs. No kernel of
// this dialect has run on Apple hardware yet.
//
// A kernel is a function kernel void NAME(constant Params& p [[buffer(0)]], threadgroup T* memory [[threadgroup(0)]],
// ...). Params is the kernel's own type of parameters, and T is float or uchar. A kernel without threadgroup memory has
// no parameter `memory`. Pointers in Params are addresses on the device. Kernels use no lambda, no `double` and no
// `long long`, which Metal does not have.
//
// Metal's default mathematics assumes that no number is infinite or NaN. So kernels find infinities and NaNs by their
// bits (is_finite), and write them by their bits (store_nan). Kernels hide a pair of a query and a key by a weight of
// 0, not by a score of -infinity.
#pragma once

#include <metal_stdlib>

#include "common/kernel/spaces.h"
#include "common/kernel/types.h"

using namespace metal;

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define UNROLL _Pragma("clang loop unroll(full)")
#define VECTORIZE  // empty, because each lane is a thread

// Builtins of the host's compilers that a hook may use, because a hook's text is the same for every dialect.
#define __builtin_inff() as_type<float>(0x7f800000u)
#define __builtin_expf metal::precise::exp
#define __builtin_exp2f metal::precise::exp2
#define __builtin_logf metal::precise::log
#define __builtin_tanhf metal::precise::tanh
#define __builtin_fabsf metal::fabs

constexpr constant int SIMD = 32;                        // lanes of a simdgroup
constexpr constant int threadgroup_limit_bytes = 32768;  // of threadgroup memory

// ---- numbers that are not finite

INLINE bool is_finite(float x) { return (as_type<uint>(x) & 0x7f800000u) != 0x7f800000u; }
INLINE bool is_nan(float x) { return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u; }
INLINE bool is_zero(float x) { return (as_type<uint>(x) & 0x7fffffffu) == 0; }
INLINE bool is_minus_infinity(float x) { return as_type<uint>(x) == 0xff800000u; }
INLINE float not_a_number() { return as_type<float>(0x7fc00000u); }

// ---- elements

template <int TYPE>
struct ElementOf {
  typedef float type;
};
template <>
struct ElementOf<F16> {
  typedef half type;
};
template <>
struct ElementOf<BF16> {
  typedef bfloat type;
};

/// Loads the element of type TYPE (an ElementType) at `index`. Returns the element as a float.
template <int TYPE>
INLINE float load_float(const device void* tensor, long index) {
  return static_cast<float>(static_cast<const device typename ElementOf<TYPE>::type*>(tensor)[index]);
}
template <int TYPE>
INLINE float load_float(const thread void* place, long index) {
  return static_cast<float>(static_cast<const thread typename ElementOf<TYPE>::type*>(place)[index]);
}

/// Stores one element, rounded to nearest, ties to even.
template <int TYPE>
INLINE void store_float(device void* tensor, long index, float value) {
  typedef typename ElementOf<TYPE>::type Element;
  static_cast<device Element*>(tensor)[index] = static_cast<Element>(value);
}
template <int TYPE>
INLINE void store_float(thread void* place, long index, float value) {
  typedef typename ElementOf<TYPE>::type Element;
  static_cast<thread Element*>(place)[index] = static_cast<Element>(value);
}

template <int TYPE>
INLINE void store_nan(device void* tensor, long index) {
  if (TYPE == F32) {
    static_cast<device uint*>(tensor)[index] = 0x7fc00000u;
  } else {
    static_cast<device ushort*>(tensor)[index] = TYPE == F16 ? 0x7e00 : 0x7fc0;
  }
}

// ---- simdgroup matrices, 8 x 8
//
// Lane l holds the elements (row, column) and (row, column + 1), where row = fragment_row(l) and column =
// fragment_column(l). Apple does not document this layout, but MLX relies on it too. The kernel `probe`
// (common/device/kernels/probe.metal) checks the layout on a device.

INLINE int fragment_row(uint lane) { return static_cast<int>((lane >> 4 & 1) * 4 + (lane >> 1 & 3)); }
INLINE int fragment_column(uint lane) { return static_cast<int>((lane >> 3 & 1) * 4 + (lane & 1) * 2); }

/// Sum and maximum over the four lanes that hold a row of a matrix. All four lanes get the result.
INLINE float sum_of_row(float x) {
  x += simd_shuffle_xor(x, 1);
  return x + simd_shuffle_xor(x, 8);
}
INLINE float maximum_of_row(float x) {
  x = max(x, simd_shuffle_xor(x, 1));
  return max(x, simd_shuffle_xor(x, 8));
}
