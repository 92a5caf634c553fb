// The cuda dialect on Ampere and later: elements of 8 bits as exact ones of 16, two at a time.
#pragma once

#include "common/kernel/byte_types.h"
#include "common/kernel/cuda.h"

/// a b + c of two bf16 or f16 each.
template <int TYPE>
DEVICE unsigned multiply_add_pair(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  if constexpr (TYPE == BF16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  }
  return d;
}

template <int FROM, int TO>
DEVICE unsigned even_of_four(unsigned four);

/// Bytes 1 and 3 of four, of type FROM (E4M3, INT8), as a pair of type TO (BF16, F16), the first in the low half. E4M3
/// has no infinities; its NaN becomes 480.
template <int FROM, int TO>
DEVICE unsigned odd_of_four(unsigned four) {
  if constexpr (FROM == E4M3) {
    // Sign, exponent and mantissa to their places; the exponent's bias is then made up for by a power of 2.
    const unsigned bits = TO == BF16 ? four >> 4 & 0x07f007f0u : four >> 1 & 0x3f803f80u;
    return multiply_add_pair<TO>(bits | (four & 0x80008000u), TO == BF16 ? 0x7b807b80u : 0x5c005c00u, 0x80008000u);
  } else {
    return even_of_four<FROM, TO>(four >> 8);
  }
}
/// The same of bytes 0 and 2.
template <int FROM, int TO>
DEVICE unsigned even_of_four(unsigned four) {
  if constexpr (FROM == E4M3) {
    return odd_of_four<FROM, TO>(four << 8);
  } else if constexpr (TO == BF16) {
    // 128 + its low 7 bits, less 128, or 256 where it is negative.
    return multiply_add_pair<TO>((four & 0x007f007fu) | 0x43004300u, 0x3f803f80u, (four & 0x00800080u) ^ 0xc300c300u);
  } else {
    // 1024 + (x + 128), less 1152.
    return multiply_add_pair<TO>((four & 0x00ff00ffu) ^ 0x64806480u, 0x3c003c00u, 0xe480e480u);
  }
}
