// The cuda dialect on Ampere and later: converts elements of 8 bits to f16, two at a time. The f16 has the element's
// value, unless the element is NaN.
#pragma once

#include "common/kernel/byte_types.h"
#include "common/kernel/cuda.h"

/// Returns a * b + c, where each operand is a pair of f16.
DEVICE unsigned multiply_add_pair(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// Converts bytes FIRST and SECOND of `four` to a pair of f16, with byte FIRST in the low half. Byte 0 of `four` is the
/// lowest. FROM is the bytes' type, E4M3 or INT8. E4M3 has no infinities; before sm_89 its NaNs become 480 and -480.
template <int FROM, int FIRST, int SECOND>
DEVICE unsigned pair_of_four(unsigned four) {
  if constexpr (FROM == INT8) {
    // Computes x as (1024 + (x + 128)) - 1152.
    const unsigned bits = __byte_perm(four ^ 0x80808080u, 0x64646464u, 0x4040 | FIRST | SECOND << 8);
    return multiply_add_pair(bits, 0x3c003c00u, 0xe480e480u);
  } else {
#if __CUDA_ARCH__ >= 890
    unsigned pair;
    const unsigned both = __byte_perm(four, 0, FIRST | SECOND << 4);
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<unsigned short>(both)));
    return pair;
#else
    // Moves sign, exponent and mantissa to their places in f16. A factor of 2^8 then corrects the bias of the exponent.
    const unsigned bytes = __byte_perm(four, 0, 0x0404 | FIRST << 4 | SECOND << 12);
    const unsigned bits = (bytes >> 1 & 0x3f803f80u) | (bytes & 0x80008000u);
    return multiply_add_pair(bits, 0x5c005c00u, 0x80008000u);
#endif
  }
}
