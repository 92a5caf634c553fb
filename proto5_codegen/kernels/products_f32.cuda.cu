// S = scale Q K^T and O = P V in f32, written by hand: a thread keeps 8 x 8 sums of a tile of 128 x 128 (64 columns of
// O where head_dim has no more: 8 x 4), and each element that it reads from threadgroup memory serves eight of them.
// Blocks of 16 in the direction of the sum pass through two buffers.
//
// Function constants: WORK, HEAD_DIM (64 or 128). Grid: (column tiles, row tiles, heads); 256 threads.
//
// Checked: codegen_products[HEAD_DIM=64,WORK=0] without spills
// Checked: codegen_products[HEAD_DIM=64,WORK=2] without spills
// Checked: codegen_products[HEAD_DIM=128,WORK=2] without spills
#include "common/kernel/cuda.h"
#include "proto5_codegen/kernels/generated.h"

namespace {

constexpr bool SCORES = WORK == WORK_SCORES;
static_assert(SCORES || WORK == WORK_VALUES);
constexpr int THREADS = 256, ROWS = 128, DEPTH = 16;
constexpr int COLUMNS = SCORES || HEAD_DIM > 64 ? 128 : 64;
constexpr int OWN_ROWS = 8, OWN_COLUMNS = COLUMNS / 16;

// Depth first, so that a thread's elements lie side by side; four more, so that those who transpose share no bank.
struct Buffers {
  float a[2][DEPTH][ROWS + 4], b[2][DEPTH][COLUMNS + 4];
};

/// A tile on its way from device memory, element by element: COUNT lines, neighbours in a warp take neighbours in a
/// row.
template <int LINES, int LINE>
struct Part {
  float value[LINES * LINE / THREADS];

  static DEVICE int line(int i) { return (i * THREADS + threadIdx.x) / LINE; }
  static DEVICE int place(int i) { return (i * THREADS + threadIdx.x) % LINE; }
  DEVICE void load(const float* from, int step, int lines, int places) {
    UNROLL for (int i = 0; i < LINES * LINE / THREADS; ++i) {
      value[i] = line(i) < lines && place(i) < places ? from[line(i) * step + place(i)] : 0;
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 2) codegen_products(const __grid_constant__ CodegenParams p) {
  __shared__ __align__(16) Buffers tiles;
  const long long head = blockIdx.z;
  const int first_row = blockIdx.y * ROWS, first_column = blockIdx.x * COLUMNS;
  const int depth = SCORES ? static_cast<int>(HEAD_DIM) : p.kv_len,
            columns = SCORES ? p.kv_len : static_cast<int>(HEAD_DIM);
  const float* const a = static_cast<const float*>(SCORES ? p.q : p.in) + (head * p.q_len + first_row) * depth;
  const float* const b = static_cast<const float*>(SCORES ? p.k : p.v) + head * p.kv_len * HEAD_DIM;

  Part<ROWS, DEPTH> next_a;
  Part<SCORES ? COLUMNS : DEPTH, SCORES ? DEPTH : COLUMNS> next_b;
  const auto load = [&](int d) {
    next_a.load(a + d, depth, p.q_len - first_row, depth - d);
    if constexpr (SCORES) {
      next_b.load(b + static_cast<long long>(first_column) * HEAD_DIM + d, HEAD_DIM, columns - first_column, depth - d);
    } else {
      next_b.load(b + static_cast<long long>(d) * HEAD_DIM + first_column, HEAD_DIM, depth - d, columns - first_column);
    }
  };
  const auto store = [&](int buffer) {
    UNROLL for (int i = 0; i < ROWS * DEPTH / THREADS; ++i) {
      tiles.a[buffer][next_a.place(i)][next_a.line(i)] = next_a.value[i];
    }
    UNROLL for (int i = 0; i < COLUMNS * DEPTH / THREADS; ++i) {
      const int along = SCORES ? next_b.place(i) : next_b.line(i), column = SCORES ? next_b.line(i) : next_b.place(i);
      tiles.b[buffer][along][column] = next_b.value[i];
    }
  };

  const int row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;  // of the first four; 64 on are four others
  float sums[OWN_ROWS][OWN_COLUMNS] = {};
  load(0);
  store(0);
  __syncthreads();
#pragma unroll 1
  for (int d = 0; d < depth; d += DEPTH) {
    const int buffer = d / DEPTH % 2;
    if (d + DEPTH < depth) load(d + DEPTH);
    UNROLL for (int along = 0; along < DEPTH; ++along) {
      float x[OWN_ROWS], y[OWN_COLUMNS];
      UNROLL for (int i = 0; i < OWN_ROWS; i += 4) {
        *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(&tiles.a[buffer][along][row + i * 16]);
      }
      UNROLL for (int i = 0; i < OWN_COLUMNS; i += 4) {
        *reinterpret_cast<float4*>(y + i) = *reinterpret_cast<const float4*>(&tiles.b[buffer][along][column + i * 16]);
      }
      UNROLL for (int i = 0; i < OWN_ROWS; ++i) {
        UNROLL for (int j = 0; j < OWN_COLUMNS; ++j) sums[i][j] += x[i] * y[j];
      }
    }
    if (d + DEPTH < depth) store(1 - buffer);
    __syncthreads();
  }
  const float factor = SCORES ? p.scale : 1.0f;
  UNROLL for (int i = 0; i < OWN_ROWS; ++i) {
    const int query = first_row + row + i / 4 * 64 + i % 4;
    if (query >= p.q_len) continue;
    float* const out = static_cast<float*>(p.out) + (head * p.q_len + query) * columns;
    UNROLL for (int j = 0; j < OWN_COLUMNS; j += 4) {
      const int at = first_column + column + j * 16;
      const float four[4] = {sums[i][j] * factor, sums[i][j + 1] * factor, sums[i][j + 2] * factor,
                             sums[i][j + 3] * factor};
      if (at + 4 <= columns && columns % 4 == 0) {
        *reinterpret_cast<float4*>(out + at) = make_float4(four[0], four[1], four[2], four[3]);
      } else {
        UNROLL for (int k = 0; k < 4; ++k) {
          if (at + k < columns) out[at + k] = four[k];
        }
      }
    }
  }
}
