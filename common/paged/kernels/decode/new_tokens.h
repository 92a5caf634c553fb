// New tokens of `decode` (APPENDS): their rows, their rotation, and their way into the cache.
#pragma once

#include "common/paged/kernels/decode/team.h"

namespace {

struct Appends : Team {
  using Team::Team;

  // The key of the first new token; negative if a sequence has fewer keys than new tokens.
  DEVICE int first_new(const Place& place) const { return place.keys - p.q_len; }
  DEVICE const char* new_row(const Place& place, int token, bool v) const {
    const NewTokens& tokens = tokens_of(p);
    const TensorStrides& strides = v ? tokens.v_strides : tokens.k_strides;
    return static_cast<const char*>(v ? tokens.v : tokens.k) +
           (place.batch * strides.batch + place.kv_head * strides.head + token * strides.row) * KV_BYTES;
  }

  static constexpr int PAIRS = ROTARY_DIM > 0 ? ROTARY_DIM / 2 : 1;
  // Rotates rows by the angles of their positions, `count` pairs of elements in all; row_at and position_at take the
  // number of a row. A thread loads the angles of four pairs before it uses the first angle.
  template <typename RowAt, typename PositionAt>
  DEVICE void turn_rows(int count, int thread, int threads, RowAt row_at, PositionAt position_at) const {
    constexpr int at_once = 4;
    for (int first = thread; first < count; first += at_once * threads) {
      float cosines[at_once], sines[at_once];
      int positions[at_once];
      UNROLL for (int i = 0; i < at_once; ++i) {
        const int unit = min(first + i * threads, count - 1);
        positions[i] = position_at(unit / PAIRS);
        const long long at = static_cast<long long>(max(positions[i], 0)) * PAIRS + unit % PAIRS;
        cosines[i] = __ldg(tokens_of(p).cosines + at);
        sines[i] = __ldg(tokens_of(p).sines + at);
      }
      UNROLL for (int i = 0; i < at_once; ++i) {
        const int unit = first + i * threads, pair = unit % PAIRS;
        if (unit >= count || positions[i] < 0) continue;
        unsigned char* const row = row_at(unit / PAIRS);
        const int low = INTERLEAVED ? 2 * pair : pair, high = INTERLEAVED ? low + 1 : low + PAIRS;
        const float x = load_float<IN_TYPE>(row, low), y = load_float<IN_TYPE>(row, high);
        store_float<IN_TYPE>(row, low, x * cosines[i] - y * sines[i]);
        store_float<IN_TYPE>(row, high, y * cosines[i] + x * sines[i]);
      }
    }
  }

  // Prefetches the angles of a tile that is about to begin.
  DEVICE void ask_for_angles(const Place& place) const {
    constexpr int line = 32;  // floats
    for (int at = threadIdx.x * line; at < p.q_len * PAIRS; at += THREADS * line) {
      const long long index = static_cast<long long>(max(first_new(place), 0)) * PAIRS + at;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(tokens_of(p).cosines + index));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(tokens_of(p).sines + index));
    }
  }

  // Rotates the tile's queries in threadgroup memory. All threads call this function.
  DEVICE void turn_queries(const Place& here, unsigned char* q) const {
    turn_rows(
        ROWS * PAIRS, threadIdx.x, THREADS, [&](int row) { return q + row * layout.q_row_bytes; },
        [&](int row) {
          const Row query = row_of(p, here, row);
          return query.exists ? first_new(here) + query.query : -1;
        });
  }

  // Rotates the new keys in the team's stage. If the tile is the first tile of its key/value head, also writes these
  // keys and their values to the cache. All threads of a team call this function.
  DEVICE void take_new(const Place& here, int number, int first_key) const {
    const int first = max(max(first_new(here), 0), first_key), end = min(here.keys, first_key + TEAM_KEYS);
    if (first >= end) return;
    const int thread = threadIdx.x % TEAM_THREADS;
    const int first_page = page_of(here, min(first + thread / UNITS_THERE, end - 1));  // loaded during the rotation
    if constexpr (ROTARY_DIM > 0) {
      turn_rows((end - first) * PAIRS, thread, TEAM_THREADS,
                [&](int row) { return team_rows(number, false) + (first + row - first_key) * layout.row_bytes; },
                [&](int row) { return first + row; });
      sync_team();
    }
    if (here.tile != 0) return;
    for (int unit = thread; unit < (end - first) * UNITS_THERE; unit += TEAM_THREADS) {
      const int key = first + unit / UNITS_THERE, column = unit % UNITS_THERE;
      const long long page = unit == thread ? first_page : page_of(here, key);
      if (!is_page(p.cache, static_cast<int>(page))) continue;
      UNROLL for (int v = 0; v < 2; ++v) {
        const TensorStrides& strides = v ? p.cache.v_strides : p.cache.k_strides;
        char* const to = static_cast<char*>(v ? p.cache.v : p.cache.k) +
                         (page * strides.batch + here.kv_head * strides.head + slot_of(key) * strides.row) * KV_BYTES +
                         column * 16;
        *reinterpret_cast<uint4*>(to) =
            *reinterpret_cast<const uint4*>(team_rows(number, v) + (key - first_key) * layout.row_bytes + column * 16);
      }
    }
  }
};

}  // namespace
