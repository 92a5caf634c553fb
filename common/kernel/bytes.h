// The cuda dialect on Ampere and later: elements of 8 bits as exact ones of 16, two at a time.
#pragma once

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

/// Bytes FIRST and SECOND of four, of type FROM (E4M3, INT8), as a pair of type TO (BF16, F16), the first in the low
/// half. E4M3 has no infinities; its NaN becomes 480.
template <int FROM, int TO, int FIRST, int SECOND>
DEVICE unsigned two_of_four(unsigned four) {
  if constexpr (FROM == E4M3) {
    // Sign, exponent and mantissa to their places; the exponent's bias is then made up for by a power of 2.
    const unsigned high = __byte_perm(four, 0, SECOND << 12 | 4 << 8 | FIRST << 4 | 4);
    const unsigned bits = TO == BF16 ? high >> 4 & 0x07f007f0u : high >> 1 & 0x3f803f80u;
    return multiply_add_pair<TO>(bits | (high & 0x80008000u), TO == BF16 ? 0x7b807b80u : 0x5c005c00u, 0x80008000u);
  } else if constexpr (TO == BF16) {
    // 128 + its low 7 bits, less 128, or 256 where it is negative.
    const unsigned sum = __byte_perm(four, 0x43434343u, 5 << 12 | SECOND << 8 | 4 << 4 | FIRST);
    return multiply_add_pair<TO>(sum & 0xff7fff7fu, 0x3f803f80u, (sum & 0xff80ff80u) ^ 0x80008000u);
  } else {
    // 1024 + (x + 128), less 1152.
    const unsigned sum = __byte_perm(four ^ 0x80808080u, 0x64646464u, 5 << 12 | SECOND << 8 | 4 << 4 | FIRST);
    return multiply_add_pair<TO>(sum, 0x3c003c00u, 0xe480e480u);
  }
}
