// The scheduler of `wgmma`: one thread that hands out tiles to the other threads of its threadgroup.
#pragma once

#include "common/attention/kernels/wgmma/setup.h"
#include "common/kernel/grid.h"

namespace {

// Finds the first block that the tile walks, and WgmmaTile::blocks. The host can find both only for the default keys
// hook.
DEVICE void find_blocks(const AttentionParams& a, Barriers& bars) {
  const int first = bars.tile.first_query;
  const int begin = key_begin(a, bars.tile, first), end = key_end(a, bars.tile, first + BLOCK_R - 1);
  bars.first_block = begin / BLOCK_C;
  bars.tile.blocks = max((end + BLOCK_C - 1) / BLOCK_C, bars.first_block + 1);
}

// Finds the tile's list. If the list is empty, the tile walks the list's first entry: block 0 with a mask.
[[maybe_unused]] DEVICE void find_list(const MaskLists& lists, Barriers& bars) {
  const MaskList list = list_of(lists, bars.tile.batch, bars.tile.head, bars.tile.first_query);
  bars.list = list.entries;
  bars.first_block = 0;
  bars.tile.blocks = max(list.count, 1);
}

DEVICE void schedule(const Params& p) {
  Barriers& bars = barriers();
  unsigned parity = 0;
  for (unsigned number = blockIdx.x; number < p.tile_count; number = next_item(p.counters)) {
    bars.tile = p.tiles[number];
    if constexpr (MASK_LISTS) {
      find_list(lists_of(p), bars);
    } else if constexpr (!KEYS_ARE_DEFAULT) {
      find_blocks(p.attention, bars);
    }
    if constexpr (KEYS_END_EARLY) {
      bars.lost[parity] = end_of_keys(context_of(p.attention, bars.tile)) < 0;
    }
    bars.tile_full.arrive();
    // Waits until the producer comes to the last block of the tile. If this threadgroup took its next tile earlier, the
    // tiles would be badly balanced between threadgroups.
    bars.tile_empty.wait(parity);
    parity ^= 1;
  }
  bars.tile.blocks = no_more_tiles;
  bars.tile_full.arrive();
  leave(p.counters);
}

}  // namespace
