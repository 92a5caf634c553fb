// The cuda dialect on Hopper: the warpgroup's matrix multiply-add with results in registers that have names in PTX and
// none in C++. A thread has N / 2 results. If results were variables of C++, each product would have up to 128 operands
// for results that it reads, and 128 for results that it writes. These operands would take 9 to 13 % of a kernel's
// compile time. The registers `s` have the results of Mma::shared() and Mma::narrow(); the registers `o` have the
// results of Mma::registers().
#pragma once

#include "common/kernel/wgmma.h"

/// Declares s0, s1, .. and o0, o1, .. for the kernel. A kernel calls this function once, before all else. All functions
/// that use these registers are inlined.
template <int S_COUNT, int O_COUNT>
DEVICE void declare_results() {
  asm volatile(".reg .f32 s<%0>, o<%1>;" ::"n"(S_COUNT), "n"(O_COUNT));
}

// Eight numbers from I on: the numbers in the names of eight registers.
#define EIGHT_FROM(I) "n"(I), "n"(I + 1), "n"(I + 2), "n"(I + 3), "n"(I + 4), "n"(I + 5), "n"(I + 6), "n"(I + 7)
#define TO_EIGHT(x) "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]), "=f"(x[4]), "=f"(x[5]), "=f"(x[6]), "=f"(x[7])
// clang-format off
#define READ_EIGHT(r)                                                                      \
  "mov.f32 %0, " r "%8; mov.f32 %1, " r "%9; mov.f32 %2, " r "%10; mov.f32 %3, " r "%11; " \
  "mov.f32 %4, " r "%12; mov.f32 %5, " r "%13; mov.f32 %6, " r "%14; mov.f32 %7, " r "%15;"
// clang-format on

/// Reads results into C++. The caller must have waited for the products that write them.
template <int COUNT, int FROM = 0>
DEVICE void read_s(float (&x)[COUNT]) {
  float* const to = x + FROM;
  asm volatile(READ_EIGHT("s") : TO_EIGHT(to) : EIGHT_FROM(FROM) : "memory");
  if constexpr (FROM + 8 < COUNT) read_s<COUNT, FROM + 8>(x);
}
template <int COUNT, int FROM = 0>
DEVICE void read_o(float (&x)[COUNT]) {
  float* const to = x + FROM;
  asm volatile(READ_EIGHT("o") : TO_EIGHT(to) : EIGHT_FROM(FROM) : "memory");
  if constexpr (FROM + 8 < COUNT) read_o<COUNT, FROM + 8>(x);
}

/// Multiplies each element of o by the factor of its row. factor[i] belongs to row i of the thread's two rows.
template <int COUNT, int FROM = 0>
DEVICE void scale_o(const float (&factor)[2]) {
  asm volatile(
      "mul.ftz.f32 o%2, o%2, %0; mul.ftz.f32 o%3, o%3, %0; mul.ftz.f32 o%4, o%4, %1; mul.ftz.f32 o%5, o%5, %1; "
      "mul.ftz.f32 o%6, o%6, %0; mul.ftz.f32 o%7, o%7, %0; mul.ftz.f32 o%8, o%8, %1; mul.ftz.f32 o%9, o%9, %1;" ::"f"(
          factor[0]),
      "f"(factor[1]), EIGHT_FROM(FROM)
      : "memory");
  if constexpr (FROM + 8 < COUNT) scale_o<COUNT, FROM + 8>(factor);
}

/// Returns the sum of the thread's elements of o, each times 0. The sum is NaN if some element is not finite, else 0.
template <int COUNT, int FROM = 0>
DEVICE float zeros_of_o(float2 sum = {0, 0}) {
  asm volatile(
      "fma.rn.f32 %0, o%2, 0f00000000, %0; fma.rn.f32 %1, o%3, 0f00000000, %1;\n"
      "fma.rn.f32 %0, o%4, 0f00000000, %0; fma.rn.f32 %1, o%5, 0f00000000, %1;\n"
      "fma.rn.f32 %0, o%6, 0f00000000, %0; fma.rn.f32 %1, o%7, 0f00000000, %1;\n"
      "fma.rn.f32 %0, o%8, 0f00000000, %0; fma.rn.f32 %1, o%9, 0f00000000, %1;"
      : "+f"(sum.x), "+f"(sum.y)
      : EIGHT_FROM(FROM)
      : "memory");
  if constexpr (FROM + 8 < COUNT) return zeros_of_o<COUNT, FROM + 8>(sum);
  return sum.x + sum.y;
}

/// mask_s sets s to `masked` in columns from `end` on, for each of the thread's two rows. mask_s_before sets s to
/// `masked` in columns before `begin`. Columns count from the thread's first column.
template <int COUNT, int FROM = 0>
DEVICE void mask_s(const int (&end)[2], float masked) {
  asm volatile(
      "{.reg .pred p, q;\n"
      "setp.le.s32 p, %0, %11; setp.le.s32 q, %1, %11; @p mov.f32 s%3, %2; @q mov.f32 s%5, %2;\n"
      "setp.le.s32 p, %0, %12; setp.le.s32 q, %1, %12; @p mov.f32 s%4, %2; @q mov.f32 s%6, %2;\n"
      "setp.le.s32 p, %0, %13; setp.le.s32 q, %1, %13; @p mov.f32 s%7, %2; @q mov.f32 s%9, %2;\n"
      "setp.le.s32 p, %0, %14; setp.le.s32 q, %1, %14; @p mov.f32 s%8, %2; @q mov.f32 s%10, %2;}" ::"r"(end[0]),
      "r"(end[1]), "f"(masked), EIGHT_FROM(FROM), "n"(2 * FROM), "n"(2 * FROM + 1), "n"(2 * FROM + 8), "n"(2 * FROM + 9)
      : "memory");
  if constexpr (FROM + 8 < COUNT) mask_s<COUNT, FROM + 8>(end, masked);
}

template <int COUNT, int FROM = 0>
DEVICE void mask_s_before(const int (&begin)[2], float masked) {
  asm volatile(
      "{.reg .pred p, q;\n"
      "setp.gt.s32 p, %0, %11; setp.gt.s32 q, %1, %11; @p mov.f32 s%3, %2; @q mov.f32 s%5, %2;\n"
      "setp.gt.s32 p, %0, %12; setp.gt.s32 q, %1, %12; @p mov.f32 s%4, %2; @q mov.f32 s%6, %2;\n"
      "setp.gt.s32 p, %0, %13; setp.gt.s32 q, %1, %13; @p mov.f32 s%7, %2; @q mov.f32 s%9, %2;\n"
      "setp.gt.s32 p, %0, %14; setp.gt.s32 q, %1, %14; @p mov.f32 s%8, %2; @q mov.f32 s%10, %2;}" ::"r"(begin[0]),
      "r"(begin[1]), "f"(masked), EIGHT_FROM(FROM), "n"(2 * FROM), "n"(2 * FROM + 1), "n"(2 * FROM + 8),
      "n"(2 * FROM + 9)
      : "memory");
  if constexpr (FROM + 8 < COUNT) mask_s_before<COUNT, FROM + 8>(begin, masked);
}

#define STORE_EIGHT(NAME, SUMS)                                                      \
  asm volatile(                                                                      \
      "{.reg .b32 a, b, c, d, z; mov.b32 z, 0;\n"                                    \
      "cvt.rn." NAME ".f32 a, o%4, o%3; cvt.rn." NAME                                \
      ".f32 b, o%6, o%5;\n"                                                          \
      "cvt.rn." NAME ".f32 c, o%8, o%7; cvt.rn." NAME                                \
      ".f32 d, o%10, o%9;\n"                                                         \
      "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%2], {a, b, c, d};\n" SUMS "}" \
      : "+r"(sums[0]), "+r"(sums[1])                                                 \
      : "r"(address), EIGHT_FROM(FROM)                                               \
      : "memory")
/// Rounds eight results of each thread, from o<FROM> on, to 16 bits, and stores them to shared memory. These results of
/// a warp are 16 rows of two groups of eight columns. Lane l passes the address of 16 bytes for row l % 16 of column
/// group l / 16. The function also adds products of the elements to `sums`, two pairs of 16-bit floats. If some element
/// is not finite, some sum is not finite. In bf16 a product has two elements as factors. In f16 a product above 65504
/// would overflow, so there each element is multiplied by 0, which takes twice the instructions.
template <int TYPE, int FROM>
DEVICE void store_o(unsigned address, unsigned (&sums)[2]) {
  if constexpr (TYPE == BF16) {
    STORE_EIGHT("bf16x2", "fma.rn.bf16x2 %0, a, b, %0; fma.rn.bf16x2 %1, c, d, %1;");
  } else {
    STORE_EIGHT("f16x2",
                "fma.rn.f16x2 %0, a, z, %0; fma.rn.f16x2 %1, b, z, %1; fma.rn.f16x2 %0, c, z, %0; "
                "fma.rn.f16x2 %1, d, z, %1;");
  }
}
/// Whether all four 16-bit floats in the pairs `a` and `b` are finite.
template <int TYPE>
DEVICE bool finite_pairs(unsigned a, unsigned b) {
  constexpr unsigned exponent = TYPE == BF16 ? 0x7f80 : 0x7c00;
  const auto finite = [](unsigned pair) {
    return (pair & exponent) != exponent && (pair & exponent << 16) != exponent << 16;
  };
  return finite(a) && finite(b);
}

// R8 to R128: the names of 8 to 128 registers.
#define NAMES(r, a, b, c, d, e, f, g, h) r #a "," r #b "," r #c "," r #d "," r #e "," r #f "," r #g "," r #h
#define R8(r) NAMES(r, 0, 1, 2, 3, 4, 5, 6, 7)
#define R16(r) R8(r) "," NAMES(r, 8, 9, 10, 11, 12, 13, 14, 15)
#define R24(r) R16(r) "," NAMES(r, 16, 17, 18, 19, 20, 21, 22, 23)
#define R32(r) R24(r) "," NAMES(r, 24, 25, 26, 27, 28, 29, 30, 31)
#define R40(r) R32(r) "," NAMES(r, 32, 33, 34, 35, 36, 37, 38, 39)
#define R48(r) R40(r) "," NAMES(r, 40, 41, 42, 43, 44, 45, 46, 47)
#define R56(r) R48(r) "," NAMES(r, 48, 49, 50, 51, 52, 53, 54, 55)
#define R64(r) R56(r) "," NAMES(r, 56, 57, 58, 59, 60, 61, 62, 63)
#define R72(r) R64(r) "," NAMES(r, 64, 65, 66, 67, 68, 69, 70, 71)
#define R80(r) R72(r) "," NAMES(r, 72, 73, 74, 75, 76, 77, 78, 79)
#define R88(r) R80(r) "," NAMES(r, 80, 81, 82, 83, 84, 85, 86, 87)
#define R96(r) R88(r) "," NAMES(r, 88, 89, 90, 91, 92, 93, 94, 95)
#define R104(r) R96(r) "," NAMES(r, 96, 97, 98, 99, 100, 101, 102, 103)
#define R112(r) R104(r) "," NAMES(r, 104, 105, 106, 107, 108, 109, 110, 111)
#define R120(r) R112(r) "," NAMES(r, 112, 113, 114, 115, 116, 117, 118, 119)
#define R128(r) R120(r) "," NAMES(r, 120, 121, 122, 123, 124, 125, 126, 127)

template <int TYPE, int N>
struct Mma;

// The high word of the descriptors of operands B that are not narrow. A kernel may define the macro before it includes
// this file, if groups of eight rows of B do not lie 1024 bytes apart.
#ifndef B_HIGH_WORDS
#define B_HIGH_WORDS operand_high
#endif

// `shared`: s = A B, or s += A B with `add`; A and B are K major in shared memory. `narrow`: s = A B; A's fragment is
// in registers, B is a narrow operand. `registers`: o = A B, or o += A B with `add`; A's fragment is in registers, B is
// MN major in shared memory.
#define MMA(TYPE, NAME, N, LIST)                                                 \
  template <>                                                                    \
  struct Mma<TYPE, N> {                                                          \
    static DEVICE void shared(unsigned a, unsigned b, int add) {                 \
      asm volatile(                                                              \
          "{.reg .pred add; .reg .b64 a, b;\n"                                   \
          "setp.ne.b32 add, %2, 0; mov.b64 a, {%0, %3}; mov.b64 b, {%1, %4};\n"  \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME        \
          " {" LIST("s") "}, a, b, add, 1, 1, 0, 0;}" ::"r"(a),                  \
          "r"(b), "r"(add), "n"(operand_high), "n"(B_HIGH_WORDS));               \
    }                                                                            \
    static DEVICE void narrow(const unsigned (&a)[4], unsigned b) {              \
      asm volatile(                                                              \
          "{.reg .pred add; .reg .b64 b;\n"                                      \
          "setp.ne.b32 add, 0, 0; mov.b64 b, {%4, %5};\n"                        \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME        \
          " {" LIST("s") "}, {%0, %1, %2, %3}, b, add, 1, 1, 0;}" ::"r"(a[0]),   \
          "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(NARROW_OPERAND_HIGH));    \
    }                                                                            \
    static DEVICE void registers(const unsigned* a, unsigned b, int add) {       \
      asm volatile(                                                              \
          "{.reg .pred add; .reg .b64 b;\n"                                      \
          "setp.ne.b32 add, %5, 0; mov.b64 b, {%4, %6};\n"                       \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME        \
          " {" LIST("o") "}, {%0, %1, %2, %3}, b, add, 1, 1, 1;}" ::"r"(a[0]),   \
          "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(B_HIGH_WORDS)); \
    }                                                                            \
  };
#define MMA_OF_TYPES(N, LIST) \
  MMA(F16, "f16", N, LIST)    \
  MMA(BF16, "bf16", N, LIST)

// The compiler's front end takes 1.5 ms for each width. So a kernel may define MMA_WIDTH before it includes this file,
// to say which widths the kernel needs.
#ifndef MMA_WIDTH
#define MMA_WIDTH(n) true
#endif
#if MMA_WIDTH(16)
MMA_OF_TYPES(16, R8)
#endif
#if MMA_WIDTH(32)
MMA_OF_TYPES(32, R16)
#endif
#if MMA_WIDTH(48)
MMA_OF_TYPES(48, R24)
#endif
#if MMA_WIDTH(64)
MMA_OF_TYPES(64, R32)
#endif
#if MMA_WIDTH(80)
MMA_OF_TYPES(80, R40)
#endif
#if MMA_WIDTH(96)
MMA_OF_TYPES(96, R48)
#endif
#if MMA_WIDTH(112)
MMA_OF_TYPES(112, R56)
#endif
#if MMA_WIDTH(128)
MMA_OF_TYPES(128, R64)
#endif
#if MMA_WIDTH(144)
MMA_OF_TYPES(144, R72)
#endif
#if MMA_WIDTH(160)
MMA_OF_TYPES(160, R80)
#endif
#if MMA_WIDTH(176)
MMA_OF_TYPES(176, R88)
#endif
#if MMA_WIDTH(192)
MMA_OF_TYPES(192, R96)
#endif
#if MMA_WIDTH(208)
MMA_OF_TYPES(208, R104)
#endif
#if MMA_WIDTH(224)
MMA_OF_TYPES(224, R112)
#endif
#if MMA_WIDTH(240)
MMA_OF_TYPES(240, R120)
#endif
#if MMA_WIDTH(256)
MMA_OF_TYPES(256, R128)
#endif
