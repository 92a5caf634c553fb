// The end of a worker of `decode_wgmma`: its warps join rows of the tiles that it shares with several other workers,
// and compute rows anew.
#pragma once

#include "common/kernel/grid.h"
#include "common/paged/kernels/decode_wgmma/consumer.h"

namespace {

// Columns of a row that a lane joins: OF_LANE units of four columns, a warp's width apart.
constexpr int ROW_UNITS = HEAD_DIM / 4, OF_LANE = (ROW_UNITS + WARP - 1) / WARP;

/// A lane's elements of some successive parts of a row.
struct LoadedParts {
  static constexpr int count = HEAD_DIM <= 128 ? 8 : 4;
  float2 stats[count];
  float4 o[count][OF_LANE];

  // Loads the parts of the workers from `worker` on.
  DEVICE void load(const Params& p, const Parts& parts, int row, int worker) {
    UNROLL for (int i = 0; i < count; ++i) {
      if (worker + i > parts.last) return;
      const long long at = part_number(worker + i, worker + i == parts.first) * ROWS + row;
      stats[i] = __ldcg(reinterpret_cast<const float2*>(p.part_stats) + at);
      UNROLL for (int j = 0; j < OF_LANE; ++j) {
        const int unit = min(static_cast<int>(threadIdx.x) % WARP + j * WARP, ROW_UNITS - 1);
        o[i][j] = __ldcg(reinterpret_cast<const float4*>(p.part_o + at * HEAD_DIM) + unit);
      }
    }
  }
};

/// Writes a lane's columns of a joined row. Returns whether some lane has a result that is not finite.
DEVICE bool write_joined(const Params& p, const Line& line, const Place& place, const Row& row,
                         Joined (&joined)[OF_LANE]) {
  const int lane = threadIdx.x % WARP;
  const float factor = finish_row(p, line, place, row, joined[0].shift, joined[0].sum, lane == 0);
  float zeros = 0;  // NaN where a result is not finite
  UNROLL for (int j = 0; j < OF_LANE; ++j) {
    const int unit = lane + j * WARP;
    if (unit >= ROW_UNITS) continue;
    float(&o)[4] = joined[j].o;
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
  return __any_sync(~0u, !(zeros == 0));
}

/// Joins the parts of rows first_row to end - 1 of a tile, at most 32 rows, and writes the rows. A lane loads its
/// elements of the next parts before it adds up those that it has. All lanes of a warp call this function.
DEVICE void join_rows(const Params& p, const Line& line, const Place& place, const Parts& parts, int first_row,
                      int end) {
  LoadedParts next;
  Joined joined[OF_LANE];
  unsigned not_finite = 0;  // bit i: row first_row + i
  int row = first_row, worker = parts.first;
  next.load(p, parts, row, worker);
#pragma unroll 1
  while (row < end) {
    const LoadedParts now = next;
    const int these = worker;
    const bool ends = worker + LoadedParts::count > parts.last;
    worker = ends ? parts.first : worker + LoadedParts::count;
    if (row + ends < end) next.load(p, parts, row + ends, worker);
    UNROLL for (int i = 0; i < LoadedParts::count; ++i) {
      if (these + i > parts.last) break;
      UNROLL for (int j = 0; j < OF_LANE; ++j) joined[j].add(now.stats[i].x, now.stats[i].y, now.o[i][j]);
    }
    if (!ends) continue;
    if (write_joined(p, line, place, row_of(p, place, row), joined)) not_finite |= 1u << (row - first_row);
    UNROLL for (int j = 0; j < OF_LANE; ++j) joined[j] = Joined{};
    ++row;
  }
#pragma unroll 1
  for (; not_finite != 0; not_finite &= not_finite - 1) {
    write_row_anew(p, place, row_of(p, place, first_row + __ffs(not_finite) - 1));
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
  const int warps = count * (CONSUMER_THREADS / WARP), step = (rows + warps - 1) / warps;
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
      join_rows(p, consumer.line, place, parts, number, min(number + step, rows));
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
    const int parts = parts_of(p, place, consumer.blocks_of_line).count();
    if (parts > 2) {
      join_tile(p, consumer, place);
    } else if (parts == 2) {
      if (kept_sums[place.block == 0]) {
        write_tile_anew(p, place, threadIdx.x / WARP - WARPGROUP / WARP, CONSUMER_THREADS / WARP);
      }
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
