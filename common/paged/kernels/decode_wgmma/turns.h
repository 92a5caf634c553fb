// Sums of O in registers of `decode_wgmma`. With TURNS = 2 a consumer passes its O to the other consumer, which has the
// same rows, through the memory of Q. A thread passes its elements to the thread with the same place in the other
// warpgroup.
#pragma once

#include "common/kernel/wgmma_named.h"
#include "common/paged/kernels/decode_wgmma/setup.h"

namespace {

// Shifts and sums of the rows that are passed.
__shared__ float2 passed_stats[TURNS > 1 ? 64 : 1];

// The memory of Q has room for so many elements of each thread.
constexpr int PASSED_AT_ONCE = layout.q_bytes / 4 / WARPGROUP;

/// Adds eight elements, times the factors of their rows, to o from element FROM on.
template <int FROM>
DEVICE void add_o(const float (&x)[8], const float (&factor)[2]) {
  asm volatile(
      "fma.rn.ftz.f32 o%10, %0, %8, o%10; fma.rn.ftz.f32 o%11, %1, %8, o%11;\n"
      "fma.rn.ftz.f32 o%12, %2, %9, o%12; fma.rn.ftz.f32 o%13, %3, %9, o%13;\n"
      "fma.rn.ftz.f32 o%14, %4, %8, o%14; fma.rn.ftz.f32 o%15, %5, %8, o%15;\n"
      "fma.rn.ftz.f32 o%16, %6, %9, o%16; fma.rn.ftz.f32 o%17, %7, %9, o%17;" ::"f"(x[0]),
      "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(x[4]), "f"(x[5]), "f"(x[6]), "f"(x[7]), "f"(factor[0]), "f"(factor[1]),
      EIGHT_FROM(FROM)
      : "memory");
}

/// Stores elements FROM to END - 1 of o, four at each WARPGROUP-th place from `to` on.
template <int FROM, int END>
DEVICE void pass_o(float4* to) {
  float x[8];
  asm volatile(READ_EIGHT("o") : TO_EIGHT(x) : EIGHT_FROM(FROM) : "memory");
  to[0] = make_float4(x[0], x[1], x[2], x[3]);
  to[WARPGROUP] = make_float4(x[4], x[5], x[6], x[7]);
  if constexpr (FROM + 8 < END) pass_o<FROM + 8, END>(to + 2 * WARPGROUP);
}

/// Adds elements that pass_o() has stored, times the factors of their rows, to o.
template <int FROM, int END>
DEVICE void add_passed(const float4* from, const float (&factor)[2]) {
  const float4 a = from[0], b = from[WARPGROUP];
  add_o<FROM>({a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, factor);
  if constexpr (FROM + 8 < END) add_passed<FROM + 8, END>(from + 2 * WARPGROUP, factor);
}

}  // namespace
