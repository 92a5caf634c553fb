// The cpu dialect: types and functions for kernels that run on host threads. The dialect is plain C++ with the
// vector extensions of clang and gcc. Kernels use no standard library, so that a kernel compiles in tens of
// milliseconds.
//
// A kernel is a function extern "C" void NAME(const Params*, const Threadgroup*). One call computes one threadgroup, on
// one host thread.
#pragma once

#include "common/kernel/types.h"

/// The position of a threadgroup in the grid, and its scratch memory (aligned to 4096 bytes, contents undefined).
struct Threadgroup {
  unsigned index[3];
  unsigned count[3];
  unsigned char* memory;
  unsigned long memory_bytes;
};

// Clang compiles the kernels, and unrolls or vectorizes only loops with a pragma, for example one of these macros. Gcc
// may compile host code that includes this file.
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#define VECTORIZE _Pragma("clang loop vectorize(enable)")
#else
#define UNROLL
#define VECTORIZE
#endif

#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define INLINE_LAMBDA __attribute__((always_inline))

/// A vector of N lanes of T. Arithmetic is lane by lane. A comparison gives the integer -1 in the lanes where the
/// comparison is true, and 0 in the other lanes.
template <typename T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <typename T, int N>
using Vector = typename VectorOf<T, N>::type;

/// Loads and stores at any address that is aligned for T.
template <typename V, typename T>
INLINE V load(const T* from) {
  typedef V Unaligned __attribute__((aligned(alignof(T)), may_alias));
  return *reinterpret_cast<const Unaligned*>(from);
}
template <typename V, typename T>
INLINE void store(T* to, V value) {
  typedef V Unaligned __attribute__((aligned(alignof(T)), may_alias));
  *reinterpret_cast<Unaligned*>(to) = value;
}

/// Whether a comparison of vectors is true in some lane.
template <typename V>
INLINE bool any_lane(V compared) {
  return __builtin_reduce_or(compared) != 0;
}

/// Loads N elements of type TYPE (an ElementType) from `index` on. Returns the elements as floats.
template <int TYPE, int N>
INLINE Vector<float, N> load_floats(const void* tensor, long long index) {
  if constexpr (TYPE == F32) {
    return load<Vector<float, N>>(static_cast<const float*>(tensor) + index);
  } else if constexpr (TYPE == F16) {
    return __builtin_convertvector(load<Vector<_Float16, N>>(static_cast<const _Float16*>(tensor) + index),
                                   Vector<float, N>);
  } else {
    const auto bits = load<Vector<unsigned short, N>>(static_cast<const unsigned short*>(tensor) + index);
    return reinterpret_cast<Vector<float, N>>(__builtin_convertvector(bits, Vector<unsigned, N>) << 16);
  }
}

/// Loads the element of type TYPE at `index`. Returns the element as a float.
template <int TYPE>
INLINE float load_float(const void* tensor, long long index) {
  if constexpr (TYPE == F32) {
    return static_cast<const float*>(tensor)[index];
  } else if constexpr (TYPE == F16) {
    return static_cast<float>(static_cast<const _Float16*>(tensor)[index]);
  } else {
    return __builtin_bit_cast(float, static_cast<unsigned>(static_cast<const unsigned short*>(tensor)[index]) << 16);
  }
}

/// Stores N elements from `index` on, rounded to nearest, ties to even.
template <int TYPE, int N>
INLINE void store_floats(void* tensor, long long index, Vector<float, N> values) {
  if constexpr (TYPE == F32) {
    store(static_cast<float*>(tensor) + index, values);
  } else if constexpr (TYPE == F16) {
    store(static_cast<_Float16*>(tensor) + index, __builtin_convertvector(values, Vector<_Float16, N>));
  } else {
    const auto bits = reinterpret_cast<Vector<unsigned, N>>(values);
    const auto rounded =
        values == values ? bits + (0x7FFFu + ((bits >> 16) & 1u)) : bits | 0x400000u;  // a NaN stays a NaN
    store(static_cast<unsigned short*>(tensor) + index,
          __builtin_convertvector(rounded >> 16, Vector<unsigned short, N>));
  }
}

template <int TYPE>
INLINE void store_float(void* tensor, long long index, float value) {
  store_floats<TYPE, 1>(tensor, index, Vector<float, 1>{value});
}
