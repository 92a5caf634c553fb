// S = scale Q K^T and O = P V in f32, written by hand for tensor cores since Ampere (sm_80): each product is three of
// tf32 (multiply_add_exactly). A warp keeps 32 x 32 sums. Of rows and columns, blocks of 32 in the direction of the sum
// pass through STAGES buffers. What a block adds is summed up apart, and added in f32: tensor cores round towards zero,
// which over thousands of keys would add up.
//
// Function constants: WORK, HEAD_DIM (64 or 128), BLOCK_R and BLOCK_C (rows and columns of a tile of the result, 64 or
// 128), STAGES (at least 2), WHOLE_UNITS (1: rows of P are multiples of 16 bytes). Grid: (column tiles, row tiles,
// heads); BLOCK_R * BLOCK_C / 32 threads; product_f32_bytes() of threadgroup memory.
//
// Checked: codegen_products[BLOCK_C=128,BLOCK_R=128,HEAD_DIM=64,STAGES=3,WHOLE_UNITS=1,WORK=0] without spills
// Checked: codegen_products[BLOCK_C=64,BLOCK_R=128,HEAD_DIM=128,STAGES=4,WHOLE_UNITS=1,WORK=0] without spills
// Checked: codegen_products[BLOCK_C=64,BLOCK_R=128,HEAD_DIM=64,STAGES=4,WHOLE_UNITS=1,WORK=2] without spills
// Checked: codegen_products[BLOCK_C=128,BLOCK_R=128,HEAD_DIM=128,STAGES=4,WHOLE_UNITS=1,WORK=2] without spills
// Checked: codegen_products[BLOCK_C=64,BLOCK_R=128,HEAD_DIM=64,STAGES=4,WHOLE_UNITS=0,WORK=2] without spills
#include "common/kernel/ampere.h"
#include "proto5_codegen/kernels/generated.h"
#include "proto5_codegen/kernels/products_f32.h"

namespace {

constexpr bool SCORES = WORK == WORK_SCORES;
static_assert(SCORES || WORK == WORK_VALUES);
constexpr int THREADS = BLOCK_R * BLOCK_C / 32;
constexpr int DEPTH = product_f32_depth;
constexpr ProductF32Layout layout(WORK, BLOCK_R, BLOCK_C, STAGES);
constexpr int ROW_WARPS = BLOCK_R / 32;

extern __shared__ __align__(16) unsigned char memory[];

/// Four bytes to threadgroup memory, or four zeros.
DEVICE void copy_word(unsigned target, const float* source, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(there ? 4 : 0)
               : "memory");
}

/// LINES lines of COLUMNS elements to threadgroup memory, by all threads; zeros behind `lines` lines and `columns`
/// columns.
template <int LINES, int COLUMNS, bool UNITS_ARE_WHOLE>
DEVICE void copy_lines(unsigned to, int line_bytes, const float* from, int step, int lines, int columns) {
  constexpr int UNITS = COLUMNS / 4;
  UNROLL for (int first = 0; first < LINES * UNITS; first += THREADS) {
    const int i = first + threadIdx.x, line = i / UNITS, column = i % UNITS * 4;
    if (LINES * UNITS % THREADS != 0 && i >= LINES * UNITS) break;
    const unsigned target = to + line * line_bytes + column * 4;
    const float* const source = from + static_cast<long long>(line) * step + column;
    if constexpr (UNITS_ARE_WHOLE) {
      copy_16(target, source, line < lines && column < columns);
    } else {
      UNROLL for (int k = 0; k < 4; ++k) copy_word(target + k * 4, source + k, line < lines && column + k < columns);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS)
    codegen_products(const __grid_constant__ CodegenParams p) {
  const long long head = blockIdx.z;
  const int first_row = blockIdx.y * BLOCK_R, first_column = blockIdx.x * BLOCK_C;
  const int depth = SCORES ? static_cast<int>(HEAD_DIM) : p.kv_len,
            columns = SCORES ? p.kv_len : static_cast<int>(HEAD_DIM);
  const float* const a = static_cast<const float*>(SCORES ? p.q : p.in) + (head * p.q_len + first_row) * depth;
  const float* const b = static_cast<const float*>(SCORES ? p.k : p.v) + head * p.kv_len * HEAD_DIM;
  const int blocks = (depth + DEPTH - 1) / DEPTH;
  const auto stage_of = [&](int block) { return shared_address(memory) + block % STAGES * layout.stage_bytes; };
  const auto copy = [&](int block) {
    if (block < blocks) {
      const int done = block * DEPTH;
      copy_lines<BLOCK_R, DEPTH, SCORES || WHOLE_UNITS>(stage_of(block), layout.a_line_bytes, a + done, depth,
                                                        p.q_len - first_row, depth - done);
      const unsigned to = stage_of(block) + layout.b;
      if constexpr (SCORES) {
        copy_lines<BLOCK_C, DEPTH, true>(to, layout.b_line_bytes,
                                         b + static_cast<long long>(first_column) * HEAD_DIM + done, HEAD_DIM,
                                         columns - first_column, DEPTH);
      } else {
        copy_lines<DEPTH, BLOCK_C, true>(to, layout.b_line_bytes,
                                         b + static_cast<long long>(done) * HEAD_DIM + first_column, HEAD_DIM,
                                         depth - done, columns - first_column);
      }
    }
    commit_copies();  // also of nothing, so that groups count blocks
  };

  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int row = warp % ROW_WARPS * 32, column = warp / ROW_WARPS * 32;  // of the warp's sums, within the tile
  // The sum's first eight places: what load_blocks() wants of a lane, and of V where this thread's elements are.
  const unsigned a_part = (row + lane % 16) * layout.a_line_bytes + lane / 16 * 16;
  const unsigned b_part =
      layout.b + (SCORES ? (column + lane % 8 + lane / 16 * 8) * layout.b_line_bytes + lane / 8 % 2 * 16
                         : lane % 4 * layout.b_line_bytes + (column + lane / 4) * 4);
  float sums[2][4][4] = {};
  for (int block = 0; block < STAGES - 1; ++block) copy(block);
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    wait_copies<STAGES - 2>();
    __syncthreads();  // the block is there, and nobody works on the one before it any more
    copy(block + STAGES - 1);
    float added[2][4][4] = {};
    UNROLL for (int step = 0; step < DEPTH / 8; ++step) {
      unsigned x[2][4], y[2][4];  // y: two columns' words of each 16 columns
      UNROLL for (int i = 0; i < 2; ++i) {
        load_blocks(x[i], stage_of(block) + a_part + i * 16 * layout.a_line_bytes + step * 32);
        if constexpr (SCORES) {
          load_blocks(y[i], stage_of(block) + b_part + i * 16 * layout.b_line_bytes + step * 32);
        } else {
          UNROLL for (int k = 0; k < 4; ++k) {
            y[i][k] = load_word(stage_of(block) + b_part + (step * 8 + k % 2 * 4) * layout.b_line_bytes +
                                (i * 16 + k / 2 * 8) * 4);
          }
        }
      }
      UNROLL for (int i = 0; i < 2; ++i) {
        UNROLL for (int j = 0; j < 4; ++j) {
          multiply_add_exactly<F32>(added[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
    UNROLL for (int i = 0; i < 32; ++i) sums[i / 16][i / 4 % 4][i % 4] += added[i / 16][i / 4 % 4][i % 4];
  }
  const float factor = SCORES ? p.scale : 1.0f;
  UNROLL for (int i = 0; i < 4; ++i) {  // rows
    const int query = first_row + row + i * 8 + lane / 4;
    if (query >= p.q_len) continue;
    float* const out = static_cast<float*>(p.out) + (head * p.q_len + query) * columns;
    UNROLL for (int j = 0; j < 4; ++j) {
      const int at = first_column + column + j * 8 + lane % 4 * 2;
      const float2 pair = {sums[i / 2][j][i % 2 * 2] * factor, sums[i / 2][j][i % 2 * 2 + 1] * factor};
      if (columns % 2 == 0) {
        if (at < columns) *reinterpret_cast<float2*>(out + at) = pair;
      } else {
        if (at < columns) out[at] = pair.x;
        if (at + 1 < columns) out[at + 1] = pair.y;
      }
    }
  }
}
