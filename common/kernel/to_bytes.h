// Converts floats to elements of 8 bits. All dialects share this text, so every device stores the same bytes.
#pragma once

#include "common/kernel/byte_types.h"

#if defined(__METAL_VERSION__)
#define TO_BYTES INLINE
#define BITS_OF(x) as_type<uint>(x)
#define FLOAT_OF(bits) as_type<float>(bits)
#elif defined(__CUDACC__)
#include "common/kernel/cuda.h"
#define TO_BYTES DEVICE
#define BITS_OF(x) __float_as_uint(x)
#define FLOAT_OF(bits) __uint_as_float(bits)
#else
#include "common/kernel/cpu.h"
#define TO_BYTES INLINE
#define BITS_OF(x) __builtin_bit_cast(unsigned, x)
#define FLOAT_OF(bits) __builtin_bit_cast(float, bits)
#endif

/// Returns the element of type TYPE, E4M3 or INT8, that is nearest to x; ties go to even. A magnitude beyond the
/// largest (448 or 127) becomes the largest. NaN stays NaN in E4M3, and becomes 0 in INT8, which has no NaN.
template <int TYPE>
TO_BYTES unsigned char byte_of(float x) {
  constexpr unsigned infinite = 0x7f800000u, largest = TYPE == E4M3 ? 0x43e00000u : 0x42fe0000u;
  const unsigned bits = BITS_OF(x), sign = bits >> 31, whole_size = bits & 0x7fffffffu;
  const unsigned size = whole_size < largest ? whole_size : largest;
  if (TYPE == INT8) {
    const unsigned rounded = BITS_OF(FLOAT_OF(size) + 8388608.0f);  // 2^23: the low bits of the sum are a whole number
    return static_cast<unsigned char>(whole_size > infinite ? 0u : sign ? 0u - rounded : rounded);
  }
  // A number of E4M3 has three bits of fraction. A number below 2^-6 is a multiple of 2^-9, so the low bits of
  // `size` + 2^14 count these multiples.
  const unsigned normal = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
  const unsigned small = BITS_OF(FLOAT_OF(size) + 16384.0f) & 0xffu;
  const unsigned magnitude = whole_size > infinite ? 0x7fu : size < 0x3c800000u ? small : normal;
  return static_cast<unsigned char>(sign << 7 | magnitude);
}
