// The functions that a score function may call, with their names from C's <math.h>. The cuda dialect already has these
// functions; for CUDA this file defines only INFINITY. On the cpu the functions, except for logf, have no branches and
// no calls, so that a loop that calls them can be vectorised. The relative error of exp2f is at most 3e-7, and of expf
// at most (3 + |x|) 1e-7; the absolute error of tanhf is at most 3e-7. On the cpu, exp2f and expf give 0 instead of a
// result below 2^-126, do not overflow to infinity, and keep NaN. A kernel includes this file once, within a namespace.
#ifdef __METAL_VERSION__

// The code calls metal::precise, because the fast variants of these functions have larger errors than the errors above.
static inline float fabsf(float x) { return metal::fabs(x); }
static inline float fminf(float a, float b) { return a < b ? a : b; }
static inline float fmaxf(float a, float b) { return a > b ? a : b; }
static inline float sqrtf(float x) { return metal::precise::sqrt(x); }
static inline float logf(float x) { return metal::precise::log(x); }
static inline float exp2f(float x) { return metal::precise::exp2(x); }
static inline float expf(float x) { return metal::precise::exp(x); }
static inline float tanhf(float x) { return metal::precise::tanh(x); }

#else
#ifdef __CUDACC__

#define INFINITY __int_as_float(0x7f800000)

#else

#define INFINITY __builtin_inff()

INLINE float fabsf(float x) { return __builtin_fabsf(x); }
INLINE float fminf(float a, float b) { return a < b ? a : b; }
INLINE float fmaxf(float a, float b) { return a > b ? a : b; }
INLINE float sqrtf(float x) { return __builtin_sqrtf(x); }
[[maybe_unused]] static float logf(float x) { return __builtin_logf(x); }  // calls the host's library

/// Computes 2^x for a number of either sign, in the way of exp4 (common/attention/kernels/softmax.h). Adding `shifter`
/// rounds x to the nearest integer n. The lowest bits of the sum are n + 127, the biased exponent of 2^n.
INLINE float exp2f(float x) {
  constexpr float shifter = 12582912.0f + 127;  // 1.5 * 2^23 + 127
  x = x < -127.0f ? -127.0f : x;                // in this order a NaN stays a NaN
  x = x > 127.5f ? 127.5f : x;
  const float shifted = x + shifter;
  const float rest = x - (shifted - shifter);
  float power = rest * 1.32647271e-3f + 9.67151265e-3f;
  power = power * rest + 5.55073374e-2f;
  power = power * rest + 2.40222421e-1f;
  power = power * rest + 6.93146978e-1f;
  power = power * rest + 1.0f;
  return power * __builtin_bit_cast(float, __builtin_bit_cast(unsigned, shifted) << 23);
}
INLINE float expf(float x) { return exp2f(x * 1.4426950408889634f); }
INLINE float tanhf(float x) { return 1.0f - 2.0f / (expf(2.0f * x) + 1.0f); }

#endif
#endif
