// The end of a worker of `decode_wgmma`: its warps join rows of the tiles that it shares with other workers, and
// compute rows anew.
#pragma once

#include "common/kernel/grid.h"
#include "common/paged/kernels/decode_wgmma/consumer.h"

namespace {

/// Joins the parts of rows number to number + COUNT - 1 (below `end`) of a tile, and writes the rows. A lane loads its
/// elements of AT_ONCE parts of all these rows before it uses the first of them. All lanes of a warp call this
/// function.
template <int COUNT, int AT_ONCE>
DEVICE void join_rows(const Params& p, const Line& line, const Place& place, const Parts& parts, int number, int end) {
  constexpr int units = HEAD_DIM / 4, of_lane = (units + WARP - 1) / WARP;  // a unit is four columns
  const int lane = threadIdx.x % WARP;
  Joined joined[COUNT][of_lane];
#pragma unroll 1
  for (int first = parts.first; first <= parts.last; first += AT_ONCE) {
    float2 stats[COUNT][AT_ONCE];
    float4 part[COUNT][AT_ONCE][of_lane];
    UNROLL for (int i = 0; i < AT_ONCE; ++i) {
      const int worker = min(first + i, parts.last);
      UNROLL for (int row = 0; row < COUNT; ++row) {
        const long long at = part_number(worker, worker == parts.first) * ROWS + min(number + row, end - 1);
        stats[row][i] = __ldcg(reinterpret_cast<const float2*>(p.part_stats) + at);
        UNROLL for (int j = 0; j < of_lane; ++j) {
          part[row][i][j] =
              __ldcg(reinterpret_cast<const float4*>(p.part_o + at * HEAD_DIM) + min(lane + j * WARP, units - 1));
        }
      }
    }
    UNROLL for (int i = 0; i < AT_ONCE; ++i) {
      if (first + i > parts.last) break;
      UNROLL for (int row = 0; row < COUNT; ++row) {
        UNROLL for (int j = 0; j < of_lane; ++j) joined[row][j].add(stats[row][i].x, stats[row][i].y, part[row][i][j]);
      }
    }
  }
  UNROLL for (int i = 0; i < COUNT; ++i) {
    if (number + i >= end) return;
    const Row row = row_of(p, place, number + i);
    const float factor = finish_row(p, line, place, row, joined[i][0].shift, joined[i][0].sum, lane == 0);
    float zeros = 0;  // NaN where a result is not finite
    UNROLL for (int j = 0; j < of_lane; ++j) {
      const int unit = lane + j * WARP;
      if (unit >= units) continue;
      float(&o)[4] = joined[i][j].o;
      UNROLL for (int k = 0; k < 4; ++k) {
        o[k] *= factor;
        zeros += 0 * o[k];
      }
      const long long at = output_at(p, place, row) + unit * 4;
      if constexpr (OUT_TYPE == F32) {
        *reinterpret_cast<float4*>(static_cast<float*>(p.o) + at) = make_float4(o[0], o[1], o[2], o[3]);
      } else {
        *reinterpret_cast<uint2*>(static_cast<unsigned short*>(p.o) + at) =
            make_uint2(pack<OUT_TYPE>(o[0], o[1]), pack<OUT_TYPE>(o[2], o[3]));
      }
    }
    if (__any_sync(~0u, !(zeros == 0))) write_row_anew(p, place, row);
  }
}

/// Helps to join a tile. The warps of all workers of the tile that are done with their shares take rows, one at a time,
/// as soon as all parts have arrived. A worker that has waited too long leaves the rows to the others. The worker whose
/// part arrives last need not wait, so all rows are joined even if not all workers run at the same time. All threads of
/// all consumers call this function.
DEVICE void join_tile(const Params& p, const Consumer& consumer, const Place& place) {
  const Parts parts = parts_of(p, place, consumer.blocks_of_line);
  unsigned* const arrived = p.arrived + consumer.counter_of(place, 0);
  unsigned* const taken = p.arrived + consumer.counter_of(place, 1);
  unsigned* const done = p.arrived + consumer.counter_of(place, 2);
  constexpr long long longest_wait = 100000;  // cycles
  const unsigned count = parts.count();
  const int lane = threadIdx.x % WARP, rows = min(ROWS, p.q_heads / p.kv_heads * p.q_len - place.tile * ROWS);
  // Few parts: a warp joins several rows at once, so that as many loads are in flight as for many parts.
  constexpr int several = HEAD_DIM <= 128 ? 8 : 4;
  const bool few = count <= 4;
  const int step = few ? several : 1;
  bool whole = false;
  if (lane == 0) {
    const long long since = clock64();
    while (!(whole = load_flag(arrived) == count) && clock64() - since < longest_wait) __nanosleep(20);
  }
  whole = __shfl_sync(~0u, whole, 0);
  if (whole) {
    const auto take = [&] { return lane == 0 ? static_cast<int>(atomicAdd(taken, step)) : 0; };
    int next = __shfl_sync(~0u, take(), 0);
#pragma unroll 1
    while (next < rows) {
      const int number = next;
      next = take();  // arrives while the rows are joined
      if (few) {
        join_rows<several, 2>(p, consumer.line, place, parts, number, rows);
      } else {
        join_rows<1, 8>(p, consumer.line, place, parts, number, rows);
      }
      next = __shfl_sync(~0u, next, 0);
    }
  }
  named_sync(all_consumers, CONSUMER_THREADS);
  if (threadIdx.x == WARPGROUP && atomicAdd(done, 1) == count - 1) {
    *arrived = 0;
    *taken = 0;
    *done = 0;
  }
}

/// Joins the shared tiles of a worker's share, and computes kept tiles anew. `from`: the first block of the share;
/// `count`: the number of its blocks.
DEVICE void finish_share(const Params& p, const Consumer& consumer, Place place, long long count) {
  const long long end = place.index + count;
  named_sync(all_consumers, CONSUMER_THREADS);
#pragma unroll 1
  while (place.index < end) {
    unsigned& mark = p.arrived[consumer.counter_of(place, 0)];
    if (parts_of(p, place, consumer.blocks_of_line).count() > 1) {
      join_tile(p, consumer, place);
    } else if (some_kept && mark == kept) {
      named_sync(all_consumers, CONSUMER_THREADS);  // all threads have read the mark
      if (threadIdx.x == WARPGROUP) mark = 0;
      write_tile_anew(p, place, threadIdx.x / WARP - WARPGROUP / WARP, CONSUMER_THREADS / WARP);
    }
    place.index += place.blocks - place.block - 1;
    place.block = place.blocks - 1;
    consumer.line.advance(place);
  }
}

}  // namespace
