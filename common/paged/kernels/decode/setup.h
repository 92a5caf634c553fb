// What all threads of `decode` share: constants, and threadgroup memory.
#pragma once

#include "common/kernel/ampere.h"
#include "common/paged/kernels/decode/basics.h"

namespace {

constexpr int THREADS = 128;
constexpr int HALVES = ROWS == 8 ? 1 : 2;  // how many halves of a product's 16 rows are rows of the tile
constexpr int ROW_WARPS = (ROWS + 15) / 16, KEY_WARPS = THREADS / WARP / ROW_WARPS;
constexpr int TEAM_THREADS = ROW_WARPS * WARP, TEAM_KEYS = BLOCK_C / KEY_WARPS;
constexpr int Q_BYTES = IN_TYPE == F32 ? 4 : 2;
constexpr DecodeLayout layout(HEAD_DIM, ROWS, BLOCK_C, STAGES, Q_BYTES, KV_BYTES);
constexpr int DIM = layout.dim;  // columns beyond head_dim are zero
constexpr int STEPS = DIM * KV_BYTES / 32;
constexpr int OPERAND_TYPE = KV_BYTES == 1 ? F16 : IN_TYPE;  // type of the products' operands
constexpr bool SCALES_Q = KV_BYTES == 1 && IN_TYPE == BF16;

/// A worker's threads, for join.h.
struct Helpers {
  static constexpr int WARPS = THREADS / WARP, RESIDENT = THREADGROUPS;
  DEVICE static int warp() { return threadIdx.x / WARP; }
  DEVICE static bool first_thread() { return threadIdx.x == 0; }
  DEVICE static void sync() { __syncthreads(); }
};

static_assert(!APPENDS || (CACHE_TYPE == IN_TYPE && ROTARY_DIM % 2 == 0 && ROTARY_DIM <= HEAD_DIM));
static_assert(TEAM_KEYS % 16 == 0 && (KV_BYTES == 1 || CACHE_TYPE == IN_TYPE) && (KV_BYTES > 1 || IN_TYPE != F32));

extern __shared__ __align__(16) unsigned char memory[];

}  // namespace
