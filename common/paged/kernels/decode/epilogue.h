// The end of a tile of `decode`: merge() adds up the teams' sums, leave_tile() writes rows of O or leaves a part.
#pragma once

#define JOIN_FUNCTION __device__ __noinline__
#include "common/paged/kernels/decode/join.h"
#include "common/paged/kernels/decode/softmax.h"

namespace {

struct Epilogue : Softmax {
  using Softmax::Softmax;

  // Returns element i of this thread's elements of O, counting only rows of the tile.
  DEVICE float& part_of_o(int i) { return HALVES == 1 ? o[i / 2][i % 2] : o[i / 4][i % 4]; }

  // Adds up the teams' sums for the first team, through a stage that is no longer needed. All threads call this
  // function.
  DEVICE void merge(int number) {
    UNROLL for (int r = 0; r < HALVES; ++r) sum[r] = PAGE_SIZE > 0 && some_lost ? not_a_number() : sum_of_quad(sum[r]);
    if constexpr (KEY_WARPS == 1) return;
    __syncthreads();                                              // waits until the stage's last readers are done
    float* const sums = reinterpret_cast<float*>(stage(number));  // [teams][HALVES * DIM / 4][team's threads]
    float* const stats = sums + KEY_WARPS / 2 * ROWS * DIM;       // [teams][2 * HALVES][team's threads]
    const int thread = threadIdx.x % TEAM_THREADS;
    UNROLL for (int step = KEY_WARPS / 2; step > 0; step /= 2) {
      if (team >= step && team < 2 * step) {
        float* const to = sums + (team - step) * ROWS * DIM + thread;
        UNROLL for (int i = 0; i < HALVES * DIM / 4; ++i) to[i * TEAM_THREADS] = part_of_o(i);
        float* const to_stats = stats + (team - step) * 2 * HALVES * TEAM_THREADS + thread;
        UNROLL for (int r = 0; r < HALVES; ++r) {
          to_stats[r * TEAM_THREADS] = shift[r];
          to_stats[(HALVES + r) * TEAM_THREADS] = sum[r];
        }
      }
      __syncthreads();
      if (team < step) {
        const float* const from = sums + team * ROWS * DIM + thread;
        const float* const from_stats = stats + team * 2 * HALVES * TEAM_THREADS + thread;
        float own[HALVES], other[HALVES];
        UNROLL for (int r = 0; r < HALVES; ++r) {
          const float its = from_stats[r * TEAM_THREADS], larger = fmaxf(shift[r], its);
          own[r] = power(shift[r] - larger);
          other[r] = power(its - larger);
          shift[r] = larger;
          sum[r] = sum[r] * own[r] + from_stats[(HALVES + r) * TEAM_THREADS] * other[r];
        }
        UNROLL for (int i = 0; i < HALVES * DIM / 4; ++i) {
          float& value = part_of_o(i);
          const int r = HALVES == 1 ? 0 : i / 2 % 2;
          value = value * own[r] + from[i * TEAM_THREADS] * other[r];
        }
      }
      if (step > 1) __syncthreads();
    }
  }

  // Marks a tile of which this is the only worker. write_kept_tiles() computes the rows after the loop of run(): in the
  // loop, the registers of write_tile_anew() together with the loop's registers would spill.
  DEVICE void keep_for_later(const Place& place) {
    p.arrived[line.counter_of(place, 0)] = kept;
    some_kept = true;
  }
  // Computes the kept tiles among `count` blocks of the line, from block `from` on, anew.
  DEVICE void write_kept_tiles(long long from, long long count) const {
    for (Place place = line.find(line.share_of(0), from); place.index < from + count;) {
      unsigned& mark = p.arrived[line.counter_of(place, 0)];
      if (__syncthreads_or(mark == kept)) {
        mark = 0;
        write_tile_anew(p, place, Helpers::warp(), Helpers::WARPS);
      }
      place.index += place.blocks - place.block - 1;
      place.block = place.blocks - 1;
      line.advance(place);
    }
  }

  // The first team has this worker's sums of the tile. leave_tile() writes them to O, or leaves them as a part for the
  // workers or the launch that join the parts.
  DEVICE void leave_tile(const Place& here, bool from_first_block, long long blocks_of_line) {
    const Parts parts = parts_of(p, here, blocks_of_line);
    if (team == 0) {
      UNROLL for (int r = 0; r < HALVES; ++r) {
        if (!rows[r].exists) continue;
        if (parts.count() == 1) {
          const float factor = finish_row(p, line, here, rows[r], shift[r], sum[r], quarter == 0);
          const long long at = output_at(p, here, rows[r]);
          float zeros = 0;  // NaN where a result is not finite
          UNROLL for (int i = 0; i < DIM / 4; ++i) {
            const int column = column_of(i / 2, i % 2);
            const float value = o[i / 2][2 * r + i % 2] * factor;
            zeros += 0 * value;
            if (DIM == HEAD_DIM || column < HEAD_DIM) store_float<OUT_TYPE>(p.o, at + column, value);
          }
          if (!(zeros == 0)) keep_for_later(here);
        } else {
          const long long at = part_number(blockIdx.x, from_first_block) * ROWS + first_row + lane / 4 + 8 * r;
          UNROLL for (int i = 0; i < DIM / 4; ++i) {
            const int column = column_of(i / 2, i % 2);
            if (DIM == HEAD_DIM || column < HEAD_DIM) p.part_o[at * HEAD_DIM + column] = o[i / 2][2 * r + i % 2];
          }
          if (quarter == 0) reinterpret_cast<float2*>(p.part_stats)[at] = make_float2(shift[r], sum[r]);
        }
      }
    }
    if (!JOIN_LAST || parts.count() == 1) return;
    __syncthreads();
    if (threadIdx.x == 0) say_arrived(p, line, here, parts);
  }
};

}  // namespace
