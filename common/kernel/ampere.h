// The cuda dialect on Ampere and later (sm_80): asynchronous copies to shared memory, and a warp's matrix multiply-add
// with the loads of its operands. The PTX ISA 7.4 describes these instructions.
#pragma once

#include "common/kernel/cuda.h"

// ---- copies

/// Copies 16 bytes to shared memory, without keeping them in the first-level cache. If `there` is false, this function
/// writes 16 zero bytes instead. Both addresses are multiples of 16.
DEVICE void copy_16(unsigned target, const void* source, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(there ? 16 : 0)
               : "memory");
}
/// Does what copy_16 does, for threads that together copy 128 bytes: the second-level cache then fetches all 128 bytes
/// at once.
DEVICE void copy_16_of_line(unsigned target, const void* source, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(there ? 16 : 0)
               : "memory");
}
/// Copies four bytes to shared memory. Both addresses are multiples of 4.
DEVICE void copy_4(unsigned target, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}
/// Writes 16 bytes whose bits are all 1 to shared memory. An element that consists of such bytes is NaN in every
/// floating-point element type of attention.
DEVICE void store_ones(unsigned target) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(target), "r"(~0u) : "memory");
}
/// Makes a group of the copies that this thread has issued since its last group.
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most PENDING groups of copies of this thread are under way.
template <int PENDING>
DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- operands: blocks of 8 rows by 16 bytes, four at a time

/// Loads four blocks. Lanes 8 i to 8 i + 7 give the addresses of the rows of block i. From row t / 4 of each block,
/// thread t gets the group t % 4 of four bytes.
DEVICE void load_blocks(unsigned (&blocks)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(row));
}
/// Does what load_blocks does, for blocks of 16-bit elements, and transposes each block.
DEVICE void load_blocks_transposed(unsigned (&blocks)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(row));
}

// ---- matrix multiply-add: D[16 x 8] += A[16 x 32 bytes] B[32 bytes x 8], f32 += 16 bit * 16 bit or tf32 * tf32
//
// Thread t, with row = t / 4 and quarter = t % 4, holds
//   of D: (row, 2 quarter), (row, 2 quarter + 1), (row + 8, 2 quarter), (row + 8, 2 quarter + 1)
//   of A: from row `row` of each of four blocks, the group `quarter` of four bytes. The blocks are (rows 0 to 7, first
//         16 bytes), (rows 8 to 15, first 16 bytes), (rows 0 to 7, second 16 bytes), (rows 8 to 15, second 16 bytes)
//   of B: column `row`, bytes 4 quarter to 4 quarter + 3 of its first 16 bytes, and of its second 16 bytes

/// F32 stands for tf32: the product reads only the sign, the exponent and ten bits of the mantissa of an operand.
template <int TYPE>
DEVICE void multiply_add(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#define MULTIPLY_ADD(SHAPE, NAME)                             \
  asm("mma.sync.aligned." SHAPE ".row.col.f32." NAME "." NAME \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "   \
      "{%0, %1, %2, %3};"                                     \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])        \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (TYPE == BF16) MULTIPLY_ADD("m16n8k16", "bf16");
  if constexpr (TYPE == F16) MULTIPLY_ADD("m16n8k16", "f16");
  if constexpr (TYPE == F32) MULTIPLY_ADD("m16n8k8", "tf32");
#undef MULTIPLY_ADD
}

/// Does what multiply_add does, but for 32-bit operands to about the accuracy of f32. Each f32 number is split into a
/// high and a low part, two numbers of tf32. The function adds the products low * high, high * low and high * high to
/// `d`, and leaves out low * low.
template <int TYPE>
DEVICE void multiply_add_exactly(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (TYPE == F32) {
    const auto high = [](unsigned x) { return (x + 0x1000u) & 0xffffe000u; };  // rounded to nearest
    const auto low = [&](unsigned x) { return __float_as_uint(__uint_as_float(x) - __uint_as_float(high(x))); };
    const unsigned a_high[4] = {high(a[0]), high(a[1]), high(a[2]), high(a[3])};
    const unsigned a_low[4] = {low(a[0]), low(a[1]), low(a[2]), low(a[3])};
    multiply_add<F32>(d, a_low, high(b0), high(b1));
    multiply_add<F32>(d, a_high, low(b0), low(b1));
    multiply_add<F32>(d, a_high, high(b0), high(b1));
  } else {
    multiply_add<TYPE>(d, a, b0, b1);
  }
}

DEVICE unsigned load_word(unsigned address) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}
