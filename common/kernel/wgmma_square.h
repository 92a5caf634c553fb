// The cuda dialect on Hopper: the warpgroup's matrix multiply-add with 64 or 8 columns and results in variables of C++:
// D = A B, or D += A B with `add`. TA is 1 if A is MN major, and TB is 1 if B is MN major.
#pragma once

#include "common/kernel/wgmma.h"

#define D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D32(d) D4(d, 0), D4(d, 4), D4(d, 8), D4(d, 12), D4(d, 16), D4(d, 20), D4(d, 24), D4(d, 28)
#define D32_NAMES                                                                                               \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
  "%29,%30,%31}"

#define MMA_SHARED(NAME)                                                                                        \
  asm volatile(                                                                                                 \
      "{.reg .pred add; .reg .b64 a, b;\n"                                                                      \
      "setp.ne.b32 add, %34, 0; mov.b64 a, {%32, %35}; mov.b64 b, {%33, %35};\n"                                \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " D32_NAMES ", a, b, add, 1, 1, %36, %37;}" \
      : D32(d)                                                                                                  \
      : "r"(a), "r"(b), "r"(add), "n"(operand_high), "n"(TA), "n"(TB))
#define MMA_REGISTERS(NAME)                                                     \
  asm volatile(                                                                 \
      "{.reg .pred add; .reg .b64 b;\n"                                         \
      "setp.ne.b32 add, %37, 0; mov.b64 b, {%36, %38};\n"                       \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " " D32_NAMES \
      ", {%32,%33,%34,%35}, b, add, 1, 1, 1;}"                                  \
      : D32(d)                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(operand_high))

#define MMA_NARROW(NAME)                                                                                    \
  asm volatile(                                                                                             \
      "{.reg .pred add; .reg .b64 a, b;\n"                                                                  \
      "setp.ne.b32 add, %6, 0; mov.b64 a, {%4, %7}; mov.b64 b, {%5, %8};\n"                                 \
      "wgmma.mma_async.sync.aligned.m64n8k16.f32." NAME "." NAME " {%0,%1,%2,%3}, a, b, add, 1, 1, %9, 0;}" \
      : D4(d, 0)                                                                                            \
      : "r"(a), "r"(b), "r"(add), "n"(operand_high), "n"(NARROW_OPERAND_HIGH), "n"(TA))

/// D[64 x 8]; B is K major and not swizzled: a column's eight rows take 16 bytes, and the columns follow one another.
template <int TYPE, int TA>
DEVICE void multiply_narrow(float (&d)[4], unsigned a, unsigned b, int add) {
  if constexpr (TYPE == BF16) {
    MMA_NARROW("bf16");
  } else {
    MMA_NARROW("f16");
  }
}
/// D[64 x 64].
template <int TYPE, int TA, int TB>
DEVICE void multiply(float (&d)[32], unsigned a, unsigned b, int add) {
  if constexpr (TYPE == BF16) {
    MMA_SHARED("bf16");
  } else {
    MMA_SHARED("f16");
  }
}
/// D[64 x 64]; A's fragment is in registers, and B is MN major.
template <int TYPE>
DEVICE void multiply_registers(float (&d)[32], const unsigned* a, unsigned b, int add) {
  if constexpr (TYPE == BF16) {
    MMA_REGISTERS("bf16");
  } else {
    MMA_REGISTERS("f16");
  }
}
