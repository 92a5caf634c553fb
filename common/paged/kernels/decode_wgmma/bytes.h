// Caches of 8 bits of `decode_wgmma`. The producer copies blocks of K and V as they are. The converter, a warpgroup,
// converts them to f16, the operands of the products. The conversion is exact: the scales of keys, one for each box of
// a block, go to the consumers through threadgroup memory. Q of bf16 is converted to f16, too; each row is first
// divided by a power of 2.
#pragma once

#include "common/paged/kernels/decode_wgmma/setup.h"

namespace {

constexpr int CONVERTERS = WARPGROUP / WARP;  // the converter's warps
// More entries of scales than blocks are under way: K and V of a block take two slots.
constexpr int SCALE_ENTRIES = SLOTS + OPERAND_SLOTS;

DEVICE unsigned char* copied_slot(int number) { return memory + layout.copies + number * layout.slot_bytes; }
DEVICE float* scales_of_rows() { return reinterpret_cast<float*>(memory + layout.scales); }
/// Returns [2][BOXES]: the scales of a block's boxes in K, and in V. Entry i is of every SCALE_ENTRIES-th block.
DEVICE float* scales_of_block(int entry) { return scales_of_rows() + ROWS + entry * 2 * BOXES; }

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
    Rings<OPERAND_SLOTS, TURNS> out;
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
