// The cuda dialect: functions for kernels that run on NVIDIA's GPUs. This file includes no headers of the toolkit, so
// that a kernel compiles quickly.
//
// A kernel is a function `extern "C" __global__ void NAME(const Params)`; most declare the parameter __grid_constant__.
// ampere.h adds functions for Ampere and later, wgmma.h functions for Hopper.
#pragma once

#include "common/kernel/types.h"

#define DEVICE __device__ __forceinline__
#define NOINLINE __device__ __noinline__
#define UNROLL _Pragma("unroll")

constexpr int WARP = 32;  // threads

DEVICE unsigned shared_address(const void* pointer) { return static_cast<unsigned>(__cvta_generic_to_shared(pointer)); }

DEVICE float infinity() { return __int_as_float(0x7f800000); }
DEVICE float not_a_number() { return __int_as_float(0x7fffffff); }

// Builtins of the host's compilers that a score hook may use, because a hook's text is the same for every dialect.
#define __builtin_inff infinity
#define __builtin_expf expf
#define __builtin_exp2f exp2f
#define __builtin_logf logf
#define __builtin_tanhf tanhf
#define __builtin_fabsf fabsf

/// Rounds two floats to nearest, and returns them as a pair of 16-bit floats with `low` in the low half.
template <int TYPE>
DEVICE unsigned pack(float low, float high) {
  unsigned pair;
  if constexpr (TYPE == BF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

/// Loads the element of type TYPE (an ElementType) at `index`. Returns the element as a float.
template <int TYPE>
DEVICE float load_float(const void* tensor, long long index) {
  if constexpr (TYPE == F32) {
    return static_cast<const float*>(tensor)[index];
  } else {
    const unsigned short bits = static_cast<const unsigned short*>(tensor)[index];
    if constexpr (TYPE == BF16) return __uint_as_float(static_cast<unsigned>(bits) << 16);
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
}

/// Stores one element, rounded to nearest, ties to even. The oracle's tensors are rounded in the same way.
template <int TYPE>
DEVICE void store_float(void* tensor, long long index, float value) {
  if constexpr (TYPE == F32) {
    static_cast<float*>(tensor)[index] = value;
  } else {
    static_cast<unsigned short*>(tensor)[index] = static_cast<unsigned short>(pack<TYPE>(value, 0));
  }
}

/// Computes 1 / x by the special function unit. The result is off by at most 1 ulp. Subnormal numbers count as 0.
DEVICE float reciprocal_approx(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

/// Computes 2^x by the special function unit. The result is 0 if x is below -126.
DEVICE float exp2_approx(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
/// Computes tanh(x). The relative error is at most 2^-11.
DEVICE float tanh_approx(float x) {
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// In each group of four threads, thread t gets word t of all four threads, in the threads' order.
DEVICE void transpose_quad(unsigned (&words)[4]) {
  UNROLL for (int step = 1; step <= 2; ++step) {
    const bool odd = threadIdx.x & step;
    UNROLL for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const unsigned got = __shfl_xor_sync(~0u, odd ? words[i] : words[i + step], step);
      words[i] = odd ? got : words[i];
      words[i + step] = odd ? words[i + step] : got;
    }
  }
}

/// Returns the larger of x and `least`, or NaN if x is NaN (fmaxf would return `least`). For sm_80 and later.
DEVICE float at_least(float x, float least) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(least));
  return larger;
}

/// sum_of_quad() returns the sum, and maximum_of_quad() the maximum, over each group of four threads. All four threads
/// get the result.
DEVICE float sum_of_quad(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
DEVICE float maximum_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
