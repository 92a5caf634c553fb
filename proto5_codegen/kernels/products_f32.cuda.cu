// S = scale Q K^T and O = P V in f32, written by hand for Hopper's tensor cores (wgmma). Tensor cores take tf32, which
// has a significand of 11 bits. So each number x is split into two numbers of tf32, high(x) and low(x), whose sum is
// nearly x. The product of x and y is computed as low(x) high(y) + high(x) low(y) + high(x) high(y) (Ootomo and Yokota
// 2022).
//
// A threadgroup computes BLOCK_R x BLOCK_C results at a time. The dimension of the sum (head_dim for S, the keys
// for O) is cut into blocks of 32, which pass through STAGES buffers. All threads split a block of K or V into two
// panels, one of the high parts and one of the low parts. A panel's rows run along the dimension of the sum, as wgmma
// needs it for tf32. Q and P go through registers. The sum over a block of V is computed on its own, and then added to
// O in f32: tensor cores round towards zero, and the errors of this rounding would add up over thousands of keys. A
// threadgroup computes STRIPE adjacent tiles of S one after another: while one tile is stored, the blocks of the next
// tile are copied. A multiprocessor has two threadgroups: one works while the other waits.
//
// Function constants: WORK, HEAD_DIM (64 or 128), BLOCK_R (64 or 128), BLOCK_C (64 or 128, at most HEAD_DIM for O),
// STAGES (at least 2), STRIPE (1 for O), WHOLE_UNITS (1: rows of S and P are multiples of 16 bytes). Grid: (stripes of
// columns, row tiles, heads); BLOCK_R * 2 threads; ProductF32Layout's threadgroup memory.
//
// Checked: codegen_products[BLOCK_C=128,BLOCK_R=128,HEAD_DIM=64,STAGES=2,STRIPE=4,WHOLE_UNITS=1,WORK=0] without spills
// Checked: codegen_products[BLOCK_C=128,BLOCK_R=128,HEAD_DIM=128,STAGES=2,STRIPE=4,WHOLE_UNITS=1,WORK=0] without spills
// Checked: codegen_products[BLOCK_C=64,BLOCK_R=128,HEAD_DIM=64,STAGES=2,STRIPE=1,WHOLE_UNITS=1,WORK=2] without spills
// Checked: codegen_products[BLOCK_C=64,BLOCK_R=128,HEAD_DIM=128,STAGES=2,STRIPE=1,WHOLE_UNITS=1,WORK=2] without spills
// Checked: codegen_products[BLOCK_C=64,BLOCK_R=128,HEAD_DIM=128,STAGES=2,STRIPE=1,WHOLE_UNITS=0,WORK=2] without spills
#define MMA_WIDTH(n) false
#include "common/kernel/ampere.h"
#include "common/kernel/wgmma_named.h"
#include "proto5_codegen/kernels/generated.h"
#include "proto5_codegen/kernels/products_f32.h"

namespace {

constexpr bool SCORES = WORK == WORK_SCORES;
static_assert(SCORES || (WORK == WORK_VALUES && STRIPE == 1));
constexpr int THREADS = BLOCK_R * 2;
constexpr int DEPTH = product_f32_depth;
constexpr ProductF32Layout layout(WORK, BLOCK_R, BLOCK_C, STAGES);
constexpr int PANEL = layout.panel_bytes;
constexpr int STEPS = 4;  // a thread holds the operands of STEPS products of depth 8

extern __shared__ __align__(1024) unsigned char memory[];

/// o = A B, or o += A B if `add` is 1. The fragment of A (tf32, as in ampere.h) is in registers, the panel of B is in
/// threadgroup memory.
DEVICE void multiply(const unsigned (&a)[4], unsigned b, int add) {
#define MULTIPLY(N, LIST)                                               \
  asm volatile(                                                         \
      "{.reg .pred add; .reg .b64 b;\n"                                 \
      "setp.ne.b32 add, %5, 0; mov.b64 b, {%4, %6};\n"                  \
      "wgmma.mma_async.sync.aligned.m64n" #N                            \
      "k8.f32.tf32.tf32"                                                \
      " {" LIST("o") "}, {%0, %1, %2, %3}, b, add, 1, 1;}" ::"r"(a[0]), \
      "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), "n"(operand_high))
  if constexpr (BLOCK_C == 64) MULTIPLY(64, R32);
  if constexpr (BLOCK_C == 128) MULTIPLY(128, R64);
#undef MULTIPLY
}

/// Adds the results o of multiply() to x, from element FROM on.
template <int COUNT, int FROM = 0>
DEVICE void add_o(float (&x)[COUNT]) {
  float* const to = x + FROM;
  asm volatile(
      "add.f32 %0, %0, o%8; add.f32 %1, %1, o%9; add.f32 %2, %2, o%10; add.f32 %3, %3, o%11;\n"
      "add.f32 %4, %4, o%12; add.f32 %5, %5, o%13; add.f32 %6, %6, o%14; add.f32 %7, %7, o%15;"
      : "+f"(to[0]), "+f"(to[1]), "+f"(to[2]), "+f"(to[3]), "+f"(to[4]), "+f"(to[5]), "+f"(to[6]), "+f"(to[7])
      : EIGHT_FROM(FROM)
      : "memory");
  if constexpr (FROM + 8 < COUNT) add_o<COUNT, FROM + 8>(x);
}

DEVICE unsigned high_of(unsigned x) { return (x + 0x1000u) & 0xffffe000u; }  // rounded to nearest
DEVICE unsigned low_of(unsigned x) { return __float_as_uint(__uint_as_float(x) - __uint_as_float(high_of(x))); }

/// Copies four bytes to threadgroup memory if `there`, else writes four zero bytes.
DEVICE void copy_word(unsigned target, const float* source, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(there ? 4 : 0)
               : "memory");
}

/// All threads copy LINES lines of COLUMNS elements to threadgroup memory. Lines are `step` elements apart at `from`,
/// and `line_bytes` bytes apart in threadgroup memory. Lines from `lines` on and columns from `columns` on become
/// zeros. UNITS: `step` and `columns` are multiples of 16 bytes.
template <int LINES, int COLUMNS, bool UNITS = true>
DEVICE void copy_lines(unsigned to, int line_bytes, const float* from, int step, int lines, int columns) {
  constexpr int OF_LINE = COLUMNS / 4, AT_ONCE = THREADS / OF_LINE;  // threads for a line; lines at once
  static_assert(LINES % AT_ONCE == 0);
  const int first = threadIdx.x / OF_LINE, column = threadIdx.x % OF_LINE * 4;
  UNROLL for (int line = 0; line < LINES; line += AT_ONCE) {
    const unsigned target = to + (first + line) * line_bytes + column * 4;
    const float* const source = from + static_cast<long long>(first + line) * step + column;
    const bool there = first + line < lines;
    if constexpr (UNITS) {
      copy_16(target, source, there && column < columns);
    } else {
      UNROLL for (int i = 0; i < 4; ++i) copy_word(target + i * 4, source + i, there && column + i < columns);
    }
  }
}

/// All threads split a block of K or V into the panel of its high parts and the panel of its low parts. A row of a
/// panel belongs to a column of the result.
DEVICE void split(const unsigned char* block) {
  UNROLL for (int first = 0; first < BLOCK_C * DEPTH / 4; first += THREADS) {
    const int i = first + threadIdx.x;
    const int row = SCORES ? i / 8 : i % BLOCK_C, chunk = SCORES ? i % 8 : i / BLOCK_C;
    uint4 x;
    if constexpr (SCORES) {
      x = *reinterpret_cast<const uint4*>(block + row * layout.b_line_bytes + chunk * 16);
    } else {
      const unsigned from = shared_address(block) + chunk * 4 * layout.b_line_bytes + row * 4;
      x = {load_word(from), load_word(from + layout.b_line_bytes), load_word(from + 2 * layout.b_line_bytes),
           load_word(from + 3 * layout.b_line_bytes)};
    }
    unsigned char* const to = memory + row * PANEL_ROW_BYTES + (chunk ^ row % 8) * 16;
    *reinterpret_cast<uint4*>(to) = {high_of(x.x), high_of(x.y), high_of(x.z), high_of(x.w)};
    *reinterpret_cast<uint4*>(to + PANEL) = {low_of(x.x), low_of(x.y), low_of(x.z), low_of(x.w)};
  }
}

/// Stores a thread's results times `factor` to the thread's two rows. `out` is the address of the first result. From
/// this address on, only `rows` rows and `columns` columns exist.
template <int COUNT>
DEVICE void store(const float (&x)[COUNT], float factor, float* out, int rows, int columns, int row_elements) {
  UNROLL for (int r = 0; r < 2; ++r) {
    if (r * 8 >= rows) break;
    float* const to = out + static_cast<long long>(r * 8) * row_elements;
    UNROLL for (int j = 0; j < COUNT / 4; ++j) {
      const float2 pair = {x[j * 4 + r * 2] * factor, x[j * 4 + r * 2 + 1] * factor};
      if (WHOLE_UNITS || !SCORES) {
        if (j * 8 < columns) *reinterpret_cast<float2*>(to + j * 8) = pair;
      } else {
        if (j * 8 < columns) to[j * 8] = pair.x;
        if (j * 8 + 1 < columns) to[j * 8 + 1] = pair.y;
      }
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 2) codegen_products(const __grid_constant__ CodegenParams p) {
  declare_results<1, BLOCK_C / 2>();
  const long long head = blockIdx.z;
  const int first_row = blockIdx.y * BLOCK_R, first_column = blockIdx.x * (BLOCK_C * STRIPE);
  const int depth = SCORES ? static_cast<int>(HEAD_DIM) : p.kv_len,
            columns = SCORES ? p.kv_len : static_cast<int>(HEAD_DIM);
  const int tiles = min(int{STRIPE}, (columns - first_column + int{BLOCK_C} - 1) / int{BLOCK_C});
  const float* const a = static_cast<const float*>(SCORES ? p.q : p.in) + (head * p.q_len + first_row) * depth;
  const float* const b = static_cast<const float*>(SCORES ? p.k : p.v) + head * p.kv_len * HEAD_DIM;
  const int of_tile = (depth + DEPTH - 1) / DEPTH, blocks = of_tile * tiles;
  const auto buffer_of = [&](int block) { return memory + layout.buffers + block % STAGES * layout.buffer_bytes; };
  const auto copy = [&](int block) {
    if (block < blocks) {
      const int done = block % of_tile * DEPTH, column = first_column + block / of_tile * int{BLOCK_C};
      const unsigned to = shared_address(buffer_of(block));
      copy_lines<BLOCK_R, DEPTH, SCORES || WHOLE_UNITS>(to, layout.a_line_bytes, a + done, depth, p.q_len - first_row,
                                                        depth - done);
      if constexpr (SCORES) {
        copy_lines<BLOCK_C, DEPTH>(to + layout.b, layout.b_line_bytes,
                                   b + static_cast<long long>(column) * HEAD_DIM + done, HEAD_DIM, columns - column,
                                   DEPTH);
      } else {
        copy_lines<DEPTH, BLOCK_C>(to + layout.b, layout.b_line_bytes,
                                   b + static_cast<long long>(done) * HEAD_DIM + column, HEAD_DIM, depth - done,
                                   BLOCK_C);
      }
    }
    commit_copies();  // wait_copies() counts groups, so a block that does not exist has an empty group
  };

  const int lane = threadIdx.x % WARP, row = threadIdx.x / WARP * 16;  // the warp's first row
  const unsigned high_panel = operand(memory), low_panel = operand(memory + PANEL);
  float sums[SCORES ? 8 : BLOCK_C / 2] = {};  // used for O only
  for (int block = 0; block < STAGES - 1; ++block) copy(block);
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    wait_copies<STAGES - 2>();
    __syncthreads();  // the block has arrived, and no thread works on the previous block any more
    copy(block + STAGES - 1);
    split(buffer_of(block) + layout.b);
    fence_stores();
    __syncthreads();
    const unsigned lines = shared_address(buffer_of(block)) + (row + lane % 16) * layout.a_line_bytes + lane / 16 * 16;
    const bool first = !SCORES || block % of_tile == 0;
    UNROLL for (int from = 0; from < DEPTH / 8; from += STEPS) {
      unsigned high[STEPS][4], low[STEPS][4];
      UNROLL for (int step = 0; step < STEPS; ++step) {
        unsigned x[4];
        load_blocks(x, lines + (from + step) * 32);
        UNROLL for (int i = 0; i < 4; ++i) high[step][i] = high_of(x[i]), low[step][i] = low_of(x[i]);
      }
      mma_fence();
      UNROLL for (int step = 0; step < STEPS; ++step) {
        const int at = (from + step) * 2;  // 32 bytes a step, in units of 16 bytes
        multiply(low[step], high_panel + at, from + step > 0 || !first);
        multiply(high[step], low_panel + at, 1);
        multiply(high[step], high_panel + at, 1);
      }
      mma_commit();
      mma_wait<0>();
    }
    if constexpr (!SCORES) add_o(sums);
    if (SCORES ? (block + 1) % of_tile != 0 : block + 1 < blocks) continue;
    const int query = first_row + row + lane / 4, column = first_column + block / of_tile * int{BLOCK_C} + lane % 4 * 2;
    float* const out = static_cast<float*>(p.out) + (head * p.q_len + query) * columns + column;
    if constexpr (SCORES) {
      float scores[BLOCK_C / 2];
      read_o(scores);
      store(scores, p.scale, out, p.q_len - query, columns - column, columns);
    } else {
      store(sums, 1, out, p.q_len - query, columns - column, columns);
    }
  }
}
