// A thread of a worker of `decode`: what it keeps in registers, and where Q and its team's keys lie in threadgroup
// memory.
#pragma once

#include "common/kernel/named_barriers.h"
#include "common/paged/kernels/decode/schedule.h"
#include "common/paged/kernels/decode/setup.h"

namespace {

struct Team {
  const Params& p;
  const Line line{p};
  const int lane = threadIdx.x % WARP, quarter = lane % 4;
  const int first_row =
      threadIdx.x / WARP % ROW_WARPS * 16;  // of the warp's 16 rows; a thread has parts of two of them, 8 apart
  const int team = threadIdx.x / TEAM_THREADS;
  const float scale_log2 = p.scale * log2_e;

  // ---- for the products

  static constexpr int PRODUCTS = KV_BYTES == 1 ? 2 : 1;  // products for 32 bytes of a row of the cache
  static constexpr bool HOLD_Q = STEPS * PRODUCTS <= 8;   // whether Q stays in registers
  unsigned queries[HOLD_Q ? STEPS : 1][PRODUCTS][4];
  float o[DIM / 8][4];
  float s[TEAM_KEYS / 8][4];  // scores, then weights

  // ---- of the rows of the tile

  float shift[HALVES], sum[HALVES];
  Row rows[HALVES];
  int begin[HALVES], end[HALVES];  // keys that the rows see
  float q_scale[SCALES_Q ? HALVES : 1];

  // ---- for the copies

  static constexpr int ROW_UNITS = DIM * KV_BYTES / 16, UNITS_THERE = HEAD_DIM * KV_BYTES / 16;  // of 16 bytes
  static constexpr int UNITS = TEAM_KEYS * ROW_UNITS;
  static constexpr int COPIES = (UNITS + TEAM_THREADS - 1) / TEAM_THREADS;
  static constexpr bool ONE_PAGE = PAGE_SIZE == 0 || PAGE_SIZE % TEAM_KEYS == 0;  // one page has all keys of the team
  int pages[ONE_PAGE ? 1 : COPIES];
  Place ahead;  // the next block to copy
  long long blocks_left;
  int slot = 0;  // q_slot(slot) is for the rows of Q of the tile of `ahead`

  DEVICE explicit Team(const Params& params) : p(params) {}

  DEVICE static unsigned char* q_slot(int slot) { return memory + slot * layout.q_bytes; }
  DEVICE static unsigned char* stage(int number) { return memory + layout.kv + number * layout.stage_bytes; }
  // K or V of this thread's team.
  DEVICE unsigned char* team_rows(int number, bool v) const {
    return stage(number) + (v ? layout.v : 0) + team * TEAM_KEYS * layout.row_bytes;
  }
  DEVICE unsigned rows_of_team(int number, bool v) const { return shared_address(team_rows(number, v)); }
  DEVICE float* scales(int number, bool v) const {
    return reinterpret_cast<float*>(stage(number) + layout.scales) + v * BLOCK_C + team * TEAM_KEYS;
  }
  DEVICE void sync_team() const {
    if constexpr (ROW_WARPS == 1) {
      __syncwarp();
    } else if constexpr (KEY_WARPS == 1) {
      __syncthreads();
    } else {
      named_sync(1 + team, TEAM_THREADS);
    }
  }

  DEVICE int first_key_of(const Place& place) const {
    return (place.first_block + place.block) * BLOCK_C + team * TEAM_KEYS;
  }
  DEVICE int page_of(const Place& place, int key) const {
    return key < place.keys ? named_page(p.cache, place.batch, key) : 0;
  }
};

}  // namespace
