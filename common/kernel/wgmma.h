// The cuda dialect on Hopper (sm_90a): tensor copies (TMA), their barriers and panels, and the operands of the
// warpgroup's matrix multiply-add (wgmma). The PTX ISA 8.0 describes these instructions. Two headers have the products:
// wgmma_named.h with results of any width, in registers that have names in PTX; wgmma_square.h with 64 columns, in
// variables of C++.
//
// Tensor copies with Swizzle::bytes_128 write tiles to shared memory as panels of 64 columns of 16 bits each. A panel
// is [rows][128 bytes], aligned to 1024 bytes. A row has eight chunks of 16 bytes; chunk c of row r lies at the place
// of chunk c ^ (r % 8).
#pragma once

#include "common/kernel/cuda.h"
#include "common/kernel/named_barriers.h"
#include "common/kernel/tensor_map.h"

constexpr int WARPGROUP = 128;     // threads
constexpr int PANEL_COLUMNS = 64;  // of 16 bits each
constexpr int PANEL_ROW_BYTES = 128;

/// Returns x, which must be the same in all threads of the warp. The reduction tells the compiler that x is uniform.
/// The compiler then keeps values that depend on x, above all indices of rings, in uniform registers (8 to 12 % faster
/// for `wgmma` at head_dim 64).
template <typename T>
DEVICE T uniform(T x) {
  return __reduce_max_sync(~0u, x);
}

// ---- barriers between threads and tensor copies

struct Barrier {
  unsigned long long state;

  DEVICE void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals));
  }
  DEVICE void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  /// Arrives, and adds `bytes` to the number of bytes that copies must bring before the phase ends.
  DEVICE void arrive_expect(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  /// Waits until the phase whose parity is `parity` is over.
  DEVICE void wait(unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

/// Makes initialised barriers visible to the copy engine.
DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// A place in a ring of COUNT buffers: the index of a buffer, and the parity of the phase that fills the buffer.
template <int COUNT>
struct Ring {
  int index = 0;
  unsigned parity = 0;
  DEVICE void advance() {
    if (++index == COUNT) {
      index = 0;
      parity ^= 1;
    }
  }
};

// ---- tensor copies

/// Copies one box of a five-dimensional tensor to shared memory. The first coordinate counts elements of the innermost
/// dimension. The barrier `full` counts the box's bytes as they arrive.
DEVICE void copy_box(void* target, const TensorMap& map, Barrier& full, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(shared_address(target)),
      "l"(&map), "r"(shared_address(&full)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

/// Copies one box of shared memory to a five-dimensional tensor. Threads that wrote to the box must have called
/// fence_stores, and then passed a barrier with the calling thread. Elements outside the tensor are not written.
DEVICE void store_box(const TensorMap& map, const void* source, int c0, int c1, int c2, int c3, int c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
               "r"(shared_address(source)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}
DEVICE void fence_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all boxes that this thread has committed have been read, so that their shared memory may be written
/// again.
DEVICE void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// Waits until all boxes that this thread has committed are in the tensor.
DEVICE void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// ---- registers of a warpgroup

/// take_registers() raises, and give_registers() lowers, the number of registers of each thread of the calling
/// warpgroup to COUNT.
template <int COUNT>
DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- matrix multiply-add: D[64 x N] += A[64 x 16] B[16 x N], f32 += 16 bit * 16 bit
//
// Thread t of the warpgroup holds four elements of D for each group j of 8 columns: (row, 8 j + c), (row, 8 j + c + 1),
// (row + 8, 8 j + c) and (row + 8, 8 j + c + 1), with row = 16 (t / 32) + t % 32 / 4 and c = 2 (t % 4).

DEVICE void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEVICE void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/// Returns the low word of the descriptor of an operand in shared memory. The word holds an address and a distance in
/// units of 16 bytes. The product sums over the index K. If K is the column of a panel (K major), the hardware ignores
/// `panel_bytes`, and a step of 16 columns is 32 bytes. If K is the row of a panel (MN major), panels are `panel_bytes`
/// apart, and a step of 16 rows is 2048 bytes.
DEVICE unsigned operand(const void* tile, unsigned panel_bytes = 16) {
  return (shared_address(tile) & 0x3FFFF) / 16 | panel_bytes / 16 << 16;
}
/// The high word of the descriptors whose low word is operand(): the distance between groups of eight rows, and the
/// swizzle of 128 bytes.
constexpr unsigned operand_high = 8 * PANEL_ROW_BYTES / 16 | 1u << 30;

/// Returns the low word of the descriptor of a narrow operand: 16 columns (K major), not swizzled. The operand consists
/// of groups of eight rows. A group has the first eight columns of its rows, 16 bytes a row, and then the other eight
/// columns.
DEVICE unsigned narrow_operand(const void* tile) { return operand(tile, 128); }
#define NARROW_OPERAND_HIGH (256 / 16)  // a macro, because a constant would be data in every kernel
/// Returns the index of element (row, column) in a narrow operand.
DEVICE int narrow_index(int row, int column) { return row / 8 * 128 + column / 8 * 64 + row % 8 * 8 + column % 8; }
