// The cuda dialect: what a kernel that runs on a GPU sees. No toolkit headers, so that a variant compiles quickly.
//
// A kernel is extern "C" __global__ void NAME(const __grid_constant__ Params). What only some GPUs have is in ampere.h
// and wgmma.h.
#pragma once

#include "common/kernel/types.h"

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")

constexpr int WARP = 32;  // threads

DEVICE unsigned shared_address(const void* pointer) { return static_cast<unsigned>(__cvta_generic_to_shared(pointer)); }

DEVICE float infinity() { return __int_as_float(0x7f800000); }
DEVICE float not_a_number() { return __int_as_float(0x7fffffff); }

// What a score hook, whose text is the same for every dialect, has of the host's compilers.
#define __builtin_inff infinity
#define __builtin_expf expf
#define __builtin_exp2f exp2f
#define __builtin_logf logf
#define __builtin_tanhf tanhf
#define __builtin_fabsf fabsf

/// Two floats as two 16-bit ones, the first in the low half, rounded to nearest.
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

/// One element of type TYPE (an ElementType) at `index`.
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

/// Rounded to nearest, ties to even, as load_float and the oracle's tensors are.
template <int TYPE>
DEVICE void store_float(void* tensor, long long index, float value) {
  if constexpr (TYPE == F32) {
    static_cast<float*>(tensor)[index] = value;
  } else {
    static_cast<unsigned short*>(tensor)[index] = static_cast<unsigned short>(pack<TYPE>(value, 0));
  }
}

/// 1 / x by the special function unit, within 1 ulp.
DEVICE float reciprocal_approx(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

/// 2^x by the special function unit; 0 below -126.
DEVICE float exp2_approx(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
/// Off by 2^-11 of the result at most.
DEVICE float tanh_approx(float x) {
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Thread t of each four gets word t of all of them, in their order.
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

/// NaN where x is NaN, which fmaxf would drop. On sm_80 and later.
DEVICE float at_least(float x, float least) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(least));
  return larger;
}

/// The same in all threads of each four.
DEVICE float sum_of_quad(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
DEVICE float maximum_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
