// The end of a worker's share of the line. Workers that share a tile leave parts. When a worker is done with its share,
// its warps join rows of the tiles that it shares, together with the warps of these tiles' other workers. This code
// runs once, and much of its time is the fetch of its instructions; so only the loops over loads are unrolled.
#pragma once

#include "common/kernel/grid.h"
#include "common/paged/kernels/decode/exact.h"
#include "common/paged/kernels/decode/rows.h"

// A function that is called leaves the registers of the caller's loop as they are. But with a call ptxas would do all
// products of `wgmma` one after the other.
#ifndef JOIN_FUNCTION
#define JOIN_FUNCTION DEVICE
#endif

namespace {

/// A tile that this worker shares with others: a block of it, its parts, and how many workers had left theirs before
/// this worker. A worker shares its first and its last tile at most.
struct SharedTile {
  Place place;
  Parts parts;
  unsigned before;
};
__shared__ SharedTile shared_tiles[2];
__shared__ int shared_count;

// Bit of the counter `arrived`: a warp has waited too long for the tile's parts, and joins no items.
constexpr unsigned gave_up = 0x40000000;

/// How the join of a tile is divided into items, each for a warp. A unit is four columns of a row. An item has WARP /
/// spread units of a row; the lanes that have the same unit add up different parts.
struct Items {
  static constexpr int UNITS = HEAD_DIM / 4, MOST_SPREAD = 8;
  static constexpr int AT_ONCE = 8;  // parts that a lane loads at the same time

  const Parts parts;
  const int group, rows;                // query heads of a key/value head, rows of the tile
  int spread = 1, units = WARP, count;  // units of an item, items of the tile

  DEVICE Items(const Params& p, const Place& place, const Parts& its_parts)
      : parts(its_parts), group(p.q_heads / p.kv_heads), rows(min(ROWS, group * p.q_len - place.tile * ROWS)) {
    count = rows * items_of_row(1);
  }
  // Spreads as long as there are warps for more items, and lanes have more parts than they load at the same time.
  DEVICE void spread_over(int warps) {
    while (spread < MOST_SPREAD && spread * AT_ONCE < parts.count() && rows * items_of_row(spread * 2) <= warps) {
      spread *= 2;
      units /= 2;
    }
    count = rows * items_of_row(spread);
  }
  DEVICE static int items_of_row(int spread) { return static_cast<unsigned>(UNITS * spread + WARP - 1) / WARP; }
};

/// Joins the parts of an item, and writes the item. All lanes of a warp call this function.
DEVICE void join_item(const Params& p, const Line& line, const Place& place, const Items& items, int item) {
  const int units = items.units, lane = threadIdx.x % WARP;
  int number = item, unit = lane & (units - 1);  // the row, and the lane's unit
#pragma unroll 1
  for (; number >= items.rows; number -= items.rows) unit += units;
  Joined joined;
  // The lane's parts, from part `mine` of the tile on; a row of a part is `at` among the rows of all parts. All parts
  // but the first are their workers' first parts.
  const float2* const all_stats = reinterpret_cast<const float2*>(p.part_stats);
  const float4* const all_o = reinterpret_cast<const float4*>(p.part_o) + min(unit, Items::UNITS - 1);
  const int step = part_number(items.spread, false) * ROWS;
  int mine = lane >> (__ffs(units) - 1), at = part_number(items.parts.first + mine, mine == 0) * ROWS + number;
#pragma unroll 1
  for (int left = items.parts.count(); left > 0; left -= Items::AT_ONCE * items.spread) {
    float2 stats[Items::AT_ONCE];
    float4 o[Items::AT_ONCE];
    UNROLL for (int i = 0; i < Items::AT_ONCE; ++i) {
      stats[i] = make_float2(lowest_score, 0);
      o[i] = float4{};
      if (mine < items.parts.count()) {
        stats[i] = __ldcg(all_stats + at);
        o[i] = __ldcg(all_o + static_cast<long long>(at) * Items::UNITS);
      }
      if (i == 0 && mine == 0) at -= ROWS;
      mine += items.spread;
      at += step;
    }
    float larger = joined.shift;
    UNROLL for (int i = 0; i < Items::AT_ONCE; ++i) larger = fmaxf(larger, stats[i].x);
    joined.raise(larger);
    UNROLL for (int i = 0; i < Items::AT_ONCE; ++i) joined.add(power(stats[i].x - larger), stats[i].y, o[i]);
  }
#pragma unroll 1
  for (int distance = units; distance < WARP; distance *= 2) {
    const auto its = [&](float x) { return __shfl_xor_sync(~0u, x, distance); };
    const float shift = its(joined.shift), sum = its(joined.sum), larger = fmaxf(joined.shift, shift);
    const float4 o = make_float4(its(joined.o[0]), its(joined.o[1]), its(joined.o[2]), its(joined.o[3]));
    joined.raise(larger);
    joined.add(power(shift - larger), sum, o);
  }
  const bool writes = lane < units && unit < Items::UNITS;
  // As row_of(), for a row that exists. Divisions take many instructions.
  Row row{place.kv_head * items.group, 0, true};
  number += place.tile * ROWS;
  row.head += p.q_len == 1 ? number : number / p.q_len;
  if (p.q_len > 1) row.query = number % p.q_len;
  const float factor = finish_row(p, line, place, row, joined.shift, joined.sum, writes && unit == 0);
  float zeros = 0;  // NaN where a result is not finite
  if (writes) {
    float(&o)[4] = joined.o;
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

/// Returns the number of multiprocessors, or a larger number.
DEVICE unsigned multiprocessors() {
  unsigned count;
  asm("mov.u32 %0, %%nsmid;" : "=r"(count));
  return count;
}

/// Helps to join a tile. A few items are joined by the worker whose part has arrived last. Of many items each worker's
/// warps join some, as soon as all parts have arrived. A warp that has waited too long gives up; then the worker whose
/// part arrives last joins all items. If the grid has more workers than run at the same time, no warp waits. `Helpers`
/// are the threads of a worker that call this function: WARPS of them, warp(), first_thread() and sync(); RESIDENT
/// workers run on a multiprocessor at the same time.
template <typename Helpers>
JOIN_FUNCTION void join_tile(const Params& p, const Line& line, const SharedTile& tile) {
  unsigned* const arrived = p.arrived + line.counter_of(tile.place, 0);
  unsigned* const done = p.arrived + line.counter_of(tile.place, 1);
  // In cycles, about 2 ms. On an H200 workers of equal shares have ended more than 50 us apart.
  const long long longest_wait = gridDim.x <= Helpers::RESIDENT * multiprocessors() ? 4000000 : 0;
  const unsigned count = tile.parts.count();
  Items items(p, tile.place, tile.parts);
  const bool alone = count <= Items::AT_ONCE && items.count <= 2 * Helpers::WARPS;
  unsigned seen = tile.before + 1;
  const bool last = (seen & ~gave_up) == count;
  if (!alone && !last && threadIdx.x % WARP == 0) {
    const long long since = clock64();
    while (((seen = load_flag(arrived)) & ~gave_up) != count && clock64() - since < longest_wait) __nanosleep(20);
    if ((seen & ~gave_up) != count) {
      seen = atomicOr(arrived, gave_up);
      __threadfence();
    }
  }
  seen = __shfl_sync(~0u, seen, 0);
  if ((seen & ~gave_up) == count) {
    const bool all = alone || (last && seen != count);
    const int others = all ? 0 : blockIdx.x - tile.parts.first, warps = (all ? 1 : count) * Helpers::WARPS;
    if (!alone) items.spread_over(count * Helpers::WARPS);
#pragma unroll 1
    for (int item = others * Helpers::WARPS + Helpers::warp(); item < items.count; item += warps) {
      join_item(p, line, tile.place, items, item);
    }
  } else if (alone) {
    return;
  }
  Helpers::sync();
  if (Helpers::first_thread() && (alone || atomicAdd(done, 1) == count - 1)) {
    *arrived = 0;
    *done = 0;
  }
}

/// Adds 1 to a flag (common/kernel/grid.h), and returns what it was before. The caller sees what was stored before the
/// flag's earlier values.
DEVICE unsigned count_up(unsigned* flag) {
  unsigned before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(flag) : "memory");
  return before;
}

/// Says that this worker has left its part of a tile, and keeps the tile for join_shared_tiles(). One thread calls this
/// function, after a barrier of the threads that have written the part.
DEVICE void say_arrived(const Params& p, const Line& line, const Place& place, const Parts& parts) {
  const unsigned before = count_up(p.arrived + line.counter_of(place, 0));
  shared_tiles[shared_count++] = {place, parts, before};
}
/// Joins the tiles that say_arrived() has kept. All of the Helpers call this function, after a barrier.
template <typename Helpers>
DEVICE void join_shared_tiles(const Params& p, const Line& line) {
#pragma unroll 1
  for (int i = 0; i < shared_count; ++i) join_tile<Helpers>(p, line, shared_tiles[i]);
}

}  // namespace
