// Caches of 8 bits of `decode_wgmma`. The producer copies blocks of K and V as they are. The converter, a warpgroup,
// converts them to f16, the operands of the products. The conversion is exact: the scales of keys, one for each box of
// a block, go to the consumers through threadgroup memory. Q of bf16 is converted to f16, too; each row is first
// divided by a power of 2.
#pragma once

#include "common/paged/kernels/decode_wgmma/producer.h"

namespace {

constexpr int CONVERTERS = WARPGROUP / WARP;  // the converter's warps
// More entries of scales than blocks are under way: K and V of a block take two slots.
constexpr int SCALE_ENTRIES = SLOTS + OPERAND_SLOTS;

DEVICE unsigned char* copied_slot(int number) { return memory + layout.copies + number * layout.slot_bytes; }
DEVICE float* scales_of_rows() { return reinterpret_cast<float*>(memory + layout.scales); }
/// Returns [2][BOXES]: the scales of a block's boxes in K, and in V. Entry i is of every SCALE_ENTRIES-th block.
DEVICE float* scales_of_block(int entry) { return scales_of_rows() + ROWS + entry * 2 * BOXES; }

struct ByteProducer : Producer {
  using Producer::Producer;
  Ring<SLOTS> ring;
  int entry = 0;

  /// This lane's box of a block.
  struct Box {
    int key = -1, kv_head = 0;  // key: negative if the sequence ends before the box
    int page = -1;              // -1: the copy brings zeros
    float k_scale = 1, v_scale = 1;
  };

  // Looks the page up. It is possible that the cache does not have this page.
  DEVICE Box find_box(const Place& place) const {
    Box found;
    const int key = (place.first_block + place.block) * BLOCK_C + box * BOX_KEYS;
    if (key >= place.keys || unit >= UNITS) return found;
    found.key = key;
    found.kv_head = place.kv_head;
    found.page = named_page(p.decode.cache, place.batch, key);
    return found;
  }
  DEVICE void load_scales(Box& of) const {
    const KvCacheView& cache = p.decode.cache;
    if (of.key < 0) return;
    if (!is_page(cache, of.page)) {
      some_lost = true;
      of.page = -1;
      return;
    }
    const long long at = static_cast<long long>(of.page) * p.decode.kv_heads + of.kv_head;
    of.k_scale = __ldg(cache.k_scales + at);
    of.v_scale = __ldg(cache.v_scales + at);
  }

  template <bool OF_KEYS>
  DEVICE void copy(const TensorMap& map, const Box& from) {
    Barriers& bars = barriers();
    bars.taken[ring.index].wait(ring.parity ^ 1);
    if constexpr (OF_KEYS) {
      if (unit < UNITS) {
        float* const scales = scales_of_block(entry);
        scales[unit] = from.k_scale;
        scales[BOXES + unit] = from.v_scale;
      }
      entry = entry + 1 < SCALE_ENTRIES ? entry + 1 : 0;
      __syncwarp();
    }
    if (threadIdx.x == 0) bars.copied[ring.index].arrive_expect(layout.slot_bytes);
    if (unit < UNITS) {
      copy_box(copied_slot(ring.index) + box * BOX_KEYS * HEAD_DIM, map, bars.copied[ring.index], 0,
               slot_of(max(from.key, 0)), 0, from.kv_head, from.page);
    }
    ring.advance();
  }

  // Copies the worker's blocks. A page is looked up four blocks ahead, and its scales two blocks ahead: each of these
  // loads takes as long as a block or two.
  DEVICE void run(Place ahead, int count) {
    constexpr int pages_ahead = 4, scales_ahead = 2;
    Box boxes[pages_ahead + 1];
    UNROLL for (int i = 0; i < pages_ahead; ++i) {
      if (i < count) boxes[i] = find_box(ahead);
      if (i + 1 < count) line.advance(ahead);
    }
    UNROLL for (int i = 0; i < scales_ahead; ++i) load_scales(boxes[i]);
    named_sync(queries_asked, CONSUMER_THREADS + PRODUCERS * WARP);
#pragma unroll 1
    for (; count > 0; --count) {
      load_scales(boxes[scales_ahead]);
      boxes[pages_ahead] = Box();
      if (count > pages_ahead) {
        if (ahead.block == 0) prefetch_queries(ahead);
        boxes[pages_ahead] = find_box(ahead);
        if (count > pages_ahead + 1) line.advance(ahead);
      }
      copy<true>(p.k, boxes[0]);
      copy<false>(p.v, boxes[0]);
      UNROLL for (int i = 0; i < pages_ahead; ++i) boxes[i] = boxes[i + 1];
    }
  }
};

struct Converter {
  // A unit is 16 elements of a row. A thread has a unit of every ROWS_AT_ONCE-th row, and if rows are long, of every
  // eighth unit of a row. So its addresses differ by constants.
  static constexpr int row_units = HEAD_DIM / 16;
  static constexpr int lanes = row_units > 4 ? 8 : row_units > 2 ? 4 : row_units;  // of a row
  static constexpr int rows_at_once = WARPGROUP / lanes, turns = (row_units + lanes - 1) / lanes;
  const int thread = threadIdx.x % WARPGROUP, row = thread / lanes, at = thread % lanes;
  // Threads that store at the same time store to different banks: a thread of the second panel stores the second half
  // of a unit first.
  const bool second = at >= 4;
  const int from = row * HEAD_DIM + at * 16, panel = at / 4 * KV_PANEL_BYTES + row * PANEL_ROW_BYTES;
  const int first_half = panel + ((at % 4 * 2 + second) ^ row % 8) * 16;
  const int second_half = panel + ((at % 4 * 2 + !second) ^ row % 8) * 16;

  // Stores eight elements.
  DEVICE static void store_half(unsigned char* to, unsigned low, unsigned high) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(pair_of_four<CACHE_TYPE, 0, 1>(low), pair_of_four<CACHE_TYPE, 2, 3>(low),
                   pair_of_four<CACHE_TYPE, 0, 1>(high), pair_of_four<CACHE_TYPE, 2, 3>(high));
  }

  DEVICE void convert(const unsigned char* block, unsigned char* panels) const {
    constexpr int rounds = (BLOCK_C + rows_at_once - 1) / rows_at_once, units = rounds * turns;
    constexpr int at_once = units < 4 ? units : 4;
    UNROLL for (int begin = 0; begin < units; begin += at_once) {
      uint4 bytes[at_once];
      UNROLL for (int i = begin; i < begin + at_once && i < units; ++i) {
        if (!exists(i)) continue;
        bytes[i - begin] = *reinterpret_cast<const uint4*>(block + from + i / turns * rows_at_once * HEAD_DIM +
                                                           i % turns * lanes * 16);
      }
      UNROLL for (int i = begin; i < begin + at_once && i < units; ++i) {
        if (!exists(i)) continue;
        unsigned char* const to =
            panels + i / turns * rows_at_once * PANEL_ROW_BYTES + i % turns * lanes / 4 * KV_PANEL_BYTES;
        const uint4 of = bytes[i - begin];
        store_half(to + first_half, second ? of.z : of.x, second ? of.w : of.y);
        store_half(to + second_half, second ? of.x : of.z, second ? of.y : of.w);
      }
    }
  }
  DEVICE bool exists(int unit) const {
    return (BLOCK_C % rows_at_once == 0 || row + unit / turns * rows_at_once < BLOCK_C) &&
           (row_units % lanes == 0 || at + unit % turns * lanes < row_units);
  }

  // Converts the worker's `count` blocks of K and V.
  DEVICE void run(int count) const {
    Barriers& bars = barriers();
    Ring<SLOTS> in;
    Operands out;
#pragma unroll 1
    for (int blocks = 2 * count; blocks > 0; --blocks) {
      bars.copied[in.index].wait(in.parity);
      bars.empty[out.number()].wait(out.ring.parity ^ 1);
      convert(copied_slot(in.index), slot(out.number()));
      fence_stores();
      __syncwarp();
      if (threadIdx.x % WARP == 0) {
        bars.taken[in.index].arrive();
        bars.full[out.number()].arrive();
      }
      in.advance();
      out.ring.advance();
      if (blocks % 2 == 1) out.turn();
    }
  }
};

}  // namespace
