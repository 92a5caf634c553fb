// S = scale Q K^T in 16 bits, written by hand for Hopper's tensor cores (wgmma). The writes of S make the kernel
// memory-bound. A threadgroup keeps BLOCK_R rows of Q, and walks through STRIPE blocks of BLOCK_C keys: while one block
// is multiplied and its scores are stored, the next block is copied. A multiprocessor has two threadgroups: one works
// while the other waits.
//
// Function constants: HEAD_DIM (64 or 128), BLOCK_R (64 or 128), BLOCK_C (a multiple of 32), STRIPE, IN_TYPE. kv_len is
// a multiple of 8. Grid: (stripes of keys, row tiles, heads); BLOCK_R * 2 threads; (BLOCK_R + 2 BLOCK_C) * HEAD_DIM * 2
// bytes of threadgroup memory.
//
// Checked: codegen_scores[BLOCK_C=128,BLOCK_R=128,HEAD_DIM=64,IN_TYPE=2,STRIPE=4] without spills
// Checked: codegen_scores[BLOCK_C=128,BLOCK_R=128,HEAD_DIM=128,IN_TYPE=2,STRIPE=4] without spills
#define MMA_WIDTH(n) ((n) == BLOCK_C_VALUE)
#include "proto5_codegen/kernels/generated.h"
#include "proto5_codegen/kernels/swizzled.h"

namespace {

constexpr int THREADS = BLOCK_R * 2;
constexpr int Q_PANEL = BLOCK_R * PANEL_ROW_BYTES, K_PANEL = BLOCK_C * PANEL_ROW_BYTES;
constexpr int Q_BYTES = BLOCK_R * HEAD_DIM * 2, K_BYTES = BLOCK_C * HEAD_DIM * 2;

extern __shared__ __align__(1024) unsigned char memory[];

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 2) codegen_scores(const __grid_constant__ CodegenParams p) {
  declare_results<BLOCK_C / 2, 1>();
  const long long head = blockIdx.z;
  const int first_row = blockIdx.y * BLOCK_R, first_key = blockIdx.x * BLOCK_C * STRIPE;
  const int end = min(first_key + int{BLOCK_C * STRIPE}, p.kv_len);
  const int warpgroup = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP;
  const auto rows_at = [&](const void* tensor, long long row) {
    return static_cast<const char*>(tensor) + row * HEAD_DIM * 2;
  };
  const auto copy_keys = [&](int key) {
    copy_panels<BLOCK_C, HEAD_DIM, THREADS>(memory + Q_BYTES + key / BLOCK_C % 2 * K_BYTES,
                                            rows_at(p.k, head * p.kv_len + key), HEAD_DIM, p.kv_len - key, HEAD_DIM);
    commit_copies();
  };
  copy_panels<BLOCK_R, HEAD_DIM, THREADS>(memory, rows_at(p.q, head * p.q_len + first_row), HEAD_DIM,
                                          p.q_len - first_row, HEAD_DIM);
  copy_keys(first_key);
#pragma unroll 1
  for (int key = first_key; key < end; key += BLOCK_C) {
    if (key + BLOCK_C < end) {
      copy_keys(key + BLOCK_C);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    fence_stores();
    __syncthreads();
    const unsigned q = operand(memory + warpgroup * 64 * PANEL_ROW_BYTES);
    const unsigned k = operand(memory + Q_BYTES + key / BLOCK_C % 2 * K_BYTES);
    mma_fence();
    UNROLL for (int step = 0; step < HEAD_DIM / 16; ++step) {
      const int panel = step / 4, bytes = step % 4 * 32;
      Mma<IN_TYPE, BLOCK_C>::shared(q + (panel * Q_PANEL + bytes) / 16, k + (panel * K_PANEL + bytes) / 16, step > 0);
    }
    mma_commit();
    mma_wait<0>();
    __syncthreads();  // all threads have read this block, so the next call of copy_keys() may overwrite it
    float s[BLOCK_C / 2];
    read_s(s);
    store_results<IN_TYPE>(s, p.scale, static_cast<char*>(p.out) + (head * p.q_len * p.kv_len + key) * 2, p.kv_len,
                           first_row + warpgroup * 64 + thread / 32 * 16 + thread % 32 / 4, p.q_len, p.kv_len - key);
  }
}
