// O = P V in 16 bits, written by hand for Hopper's tensor cores (wgmma). The reads of P make the kernel memory-bound. A
// threadgroup computes BLOCK_R rows; blocks of BLOCK_C keys pass through STAGES buffers of P and V. wgmma reads P from
// registers, and V from a buffer (MN major, wgmma.h).
//
// Function constants: HEAD_DIM (64 or 128), BLOCK_R (64 or 128), BLOCK_C (64 or 128), STAGES (at least 2), IN_TYPE.
// kv_len is a multiple of 8. Grid: (row tiles, heads); BLOCK_R * 2 threads; (BLOCK_R + HEAD_DIM) * BLOCK_C * 2 bytes of
// threadgroup memory for each stage.
//
// Checked: codegen_values[BLOCK_C=64,BLOCK_R=128,HEAD_DIM=64,IN_TYPE=2,STAGES=4] without spills
// Checked: codegen_values[BLOCK_C=64,BLOCK_R=128,HEAD_DIM=128,IN_TYPE=2,STAGES=3] without spills
#define MMA_WIDTH(n) ((n) == HEAD_DIM_VALUE)
#include "proto5_codegen/kernels/generated.h"
#include "proto5_codegen/kernels/swizzled.h"

namespace {

constexpr int THREADS = BLOCK_R * 2;
constexpr int P_PANEL = BLOCK_R * PANEL_ROW_BYTES, V_PANEL = BLOCK_C * PANEL_ROW_BYTES;
constexpr int P_BYTES = BLOCK_R * BLOCK_C * 2, STAGE_BYTES = P_BYTES + HEAD_DIM * BLOCK_C * 2;

extern __shared__ __align__(1024) unsigned char memory[];

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 2) codegen_values(const __grid_constant__ CodegenParams p) {
  declare_results<1, HEAD_DIM / 2>();
  const long long head = blockIdx.y, first_row = blockIdx.x * BLOCK_R;
  const int blocks = (p.kv_len + int{BLOCK_C} - 1) / int{BLOCK_C};
  const int warpgroup = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP, lane = thread % WARP;
  const char* const weights = static_cast<const char*>(p.in) + (head * p.q_len + first_row) * p.kv_len * 2;
  const char* const values = static_cast<const char*>(p.v) + head * p.kv_len * HEAD_DIM * 2;
  const auto stage_of = [&](int block) { return memory + block % STAGES * STAGE_BYTES; };
  const auto copy = [&](int block) {
    const int key = block * BLOCK_C, keys = p.kv_len - key;
    if (block < blocks) {
      copy_panels<BLOCK_R, BLOCK_C, THREADS>(stage_of(block), weights + key * 2, p.kv_len,
                                             p.q_len - static_cast<int>(first_row), keys);
      copy_panels<BLOCK_C, HEAD_DIM, THREADS>(stage_of(block) + P_BYTES, values + key * HEAD_DIM * 2, HEAD_DIM, keys,
                                              HEAD_DIM);
    }
    commit_copies();  // wait_copies() counts groups, so a block that does not exist has an empty group
  };
  UNROLL for (int block = 0; block < STAGES - 1; ++block) copy(block);
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    wait_copies<STAGES - 2>();
    fence_stores();
    __syncthreads();  // the block has arrived, and no thread works on the previous block any more
    copy(block + STAGES - 1);
    // load_blocks() loads the four 8 x 8 blocks of a product's 16 keys: the warp's rows 0 to 7 and rows 8 to 15 of the
    // first eight keys, then the same rows of the other eight keys.
    const int row = warpgroup * 64 + thread / WARP * 16 + lane % 16;
    const unsigned p_tile = shared_address(stage_of(block));
    unsigned a[BLOCK_C / 16][4];
    UNROLL for (int step = 0; step < BLOCK_C / 16; ++step) {
      load_blocks(a[step], p_tile + step / 4 * P_PANEL + swizzled(row, step % 4 * 2 + lane / 16));
    }
    const unsigned v = operand(stage_of(block) + P_BYTES, V_PANEL);
    mma_fence();
    UNROLL for (int step = 0; step < BLOCK_C / 16; ++step) {
      Mma<IN_TYPE, HEAD_DIM>::registers(a[step], v + step * 16 * PANEL_ROW_BYTES / 16, block > 0 || step > 0);
    }
    mma_commit();
    mma_wait<0>();
  }
  float o[HEAD_DIM / 2];
  read_o(o);
  store_results<IN_TYPE>(o, 1, static_cast<char*>(p.out) + head * p.q_len * HEAD_DIM * 2, HEAD_DIM,
                         static_cast<int>(first_row) + warpgroup * 64 + thread / 32 * 16 + lane / 4, p.q_len, HEAD_DIM);
}
