// The cuda dialect on Hopper (sm_90a): tensor copies (TMA), their barriers, and the warpgroup's matrix multiply-add
// (wgmma), as the PTX ISA 8.0 describes them.
//
// Tiles lie in shared memory as the tensor copies leave them with Swizzle::bytes_128: panels of 64 16-bit columns, each
// [rows][128 bytes], aligned to 1024 bytes.
#pragma once

#include "common/kernel/cuda.h"
#include "common/kernel/tensor_map.h"

constexpr int WARPGROUP = 128;     // threads
constexpr int PANEL_COLUMNS = 64;  // of 16 bits
constexpr int PANEL_ROW_BYTES = 128;

// ---- barriers between threads and tensor copies

struct Barrier {
  unsigned long long state;

  DEVICE void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals));
  }
  DEVICE void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  /// Arrives, and expects that many bytes of copies before the phase ends.
  DEVICE void arrive_expect(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  /// Until the phase of that parity is over.
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

/// Makes initialised barriers known to the copy engine.
DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Named barriers (1 to 15) of `threads` threads: sync waits for all of them, arrive does not wait.
DEVICE void named_sync(int id, int threads) { asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(int id, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- tensor copies

/// One box of a four-dimensional tensor to shared memory; the first coordinate counts elements of the innermost
/// dimension. Its bytes arrive at `full`.
DEVICE void copy_box(void* target, const TensorMap& map, Barrier& full, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(target)),
      "l"(&map), "r"(shared_address(&full)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// One box of shared memory to a four-dimensional tensor: of this thread's writes and of others', once each of them has
/// called fence_stores and a barrier lies between. What is outside the tensor is not written.
DEVICE void store_box(const TensorMap& map, const void* source, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared_address(source)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
DEVICE void fence_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until the shared memory of all boxes that this thread has committed may be written again.
DEVICE void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/// Four 8 x 8 matrices of 16-bit elements to shared memory: lane l has two elements, columns 2 (l % 4) and the next of
/// row l / 4, of each of them in a word; its address is where row l % 8 of matrix l / 8 begins.
DEVICE void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// ---- registers of a warpgroup

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
// Thread t of the warpgroup holds of D, for each group j of 8 columns, (row, 8 j + c), (row, 8 j + c + 1) and the same
// of row + 8, with row = 16 (t / 32) + t % 32 / 4 and c = 2 (t % 4).

DEVICE void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEVICE void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/// Descriptor of an operand in shared memory. Sums run along the columns of a panel (K major): `panel_bytes` is not
/// used, 16 columns further is 32 bytes further. Sums run along its rows (MN major): `panel_bytes` lie between panels,
/// 16 rows further is 2048 bytes further.
DEVICE unsigned long long operand(const void* tile, unsigned panel_bytes = 16) {
  constexpr unsigned long long swizzle_128 = 1ull << 62;
  constexpr unsigned long long eight_rows = 8 * PANEL_ROW_BYTES / 16;
  return (shared_address(tile) & 0x3FFFF) / 16 | static_cast<unsigned long long>(panel_bytes / 16) << 16 |
         eight_rows << 32 | swizzle_128;
}

template <int TYPE, int N>
struct Mma;

// The lists of N / 2 results, in eights.
#define D8(i)                                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])

/// Keeps the compiler from moving uses of a result before the wait for it.
template <int COUNT>
DEVICE void pin(float (&d)[COUNT]) {
  UNROLL for (int i = 0; i < COUNT; i += 8) asm volatile("" : D8(i)::"memory");
}

#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define P8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define P16 P8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define P24 P16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define P32 P24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define P40 P32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define P48 P40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define P56 P48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define P64 P56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define P72 P64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define P80 P72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define P88 P80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define P96 P88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define P104 P96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define P112 P104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define P120 P112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define P128 P120 ",%120,%121,%122,%123,%124,%125,%126,%127"

// `shared`: A and B are K major in shared memory; without `add` the result is overwritten. `registers`: A's fragment in
// registers, B is MN major. I1 to I5 are the numbers of the operands after the results.
#define MMA(TYPE, NAME, N, P, I1, I2, I3, I4, I5, ...)                                                          \
  template <>                                                                                                   \
  struct Mma<TYPE, N> {                                                                                         \
    static DEVICE void shared(float (&d)[N / 2], unsigned long long a, unsigned long long b, int add) {         \
      asm volatile("{.reg .pred add; setp.ne.b32 add, %" #I3                                                    \
                   ", 0;\n"                                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" P "}, %" #I1 ", %" #I2  \
                   ", add, 1, 1, 0, 0;}"                                                                        \
                   : __VA_ARGS__                                                                                \
                   : "l"(a), "l"(b), "r"(add));                                                                 \
    }                                                                                                           \
    static DEVICE void registers(float (&d)[N / 2], const unsigned* a, unsigned long long b) {                  \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" P "}, {%" #I1 ", %" #I2 \
                   ", %" #I3 ", %" #I4 "}, %" #I5 ", 1, 1, 1, 1;"                                               \
                   : __VA_ARGS__                                                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                       \
    }                                                                                                           \
  };
#define MMA_OF_TYPES(...)      \
  MMA(F16, "f16", __VA_ARGS__) \
  MMA(BF16, "bf16", __VA_ARGS__)

// The front end takes a millisecond and a half over each width: a kernel says before it includes this which it needs.
#ifndef MMA_WIDTH
#define MMA_WIDTH(n) true
#endif
#if MMA_WIDTH(16)
MMA_OF_TYPES(16, P8, 8, 9, 10, 11, 12, D8(0))
#endif
#if MMA_WIDTH(32)
MMA_OF_TYPES(32, P16, 16, 17, 18, 19, 20, D16(0))
#endif
#if MMA_WIDTH(48)
MMA_OF_TYPES(48, P24, 24, 25, 26, 27, 28, D16(0), D8(16))
#endif
#if MMA_WIDTH(64)
MMA_OF_TYPES(64, P32, 32, 33, 34, 35, 36, D32(0))
#endif
#if MMA_WIDTH(80)
MMA_OF_TYPES(80, P40, 40, 41, 42, 43, 44, D32(0), D8(32))
#endif
#if MMA_WIDTH(96)
MMA_OF_TYPES(96, P48, 48, 49, 50, 51, 52, D32(0), D16(32))
#endif
#if MMA_WIDTH(112)
MMA_OF_TYPES(112, P56, 56, 57, 58, 59, 60, D32(0), D16(32), D8(48))
#endif
#if MMA_WIDTH(128)
MMA_OF_TYPES(128, P64, 64, 65, 66, 67, 68, D64(0))
#endif
#if MMA_WIDTH(144)
MMA_OF_TYPES(144, P72, 72, 73, 74, 75, 76, D64(0), D8(64))
#endif
#if MMA_WIDTH(160)
MMA_OF_TYPES(160, P80, 80, 81, 82, 83, 84, D64(0), D16(64))
#endif
#if MMA_WIDTH(176)
MMA_OF_TYPES(176, P88, 88, 89, 90, 91, 92, D64(0), D16(64), D8(80))
#endif
#if MMA_WIDTH(192)
MMA_OF_TYPES(192, P96, 96, 97, 98, 99, 100, D64(0), D32(64))
#endif
#if MMA_WIDTH(208)
MMA_OF_TYPES(208, P104, 104, 105, 106, 107, 108, D64(0), D32(64), D8(96))
#endif
#if MMA_WIDTH(224)
MMA_OF_TYPES(224, P112, 112, 113, 114, 115, 116, D64(0), D32(64), D16(96))
#endif
#if MMA_WIDTH(240)
MMA_OF_TYPES(240, P120, 120, 121, 122, 123, 124, D64(0), D32(64), D16(96), D8(112))
#endif
#if MMA_WIDTH(256)
MMA_OF_TYPES(256, P128, 128, 129, 130, 131, 132, D64(0), D64(64))
#endif
