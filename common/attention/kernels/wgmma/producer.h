// The producers of `wgmma`: threads that issue the tensor copies. Only the first producer issues copies of Q.
#pragma once

#include "common/attention/kernels/wgmma/setup.h"

namespace {

DEVICE void copy_panels(unsigned char* target, int panel_bytes, const TensorMap& map, Barrier& full, int row, int head,
                        int batch) {
  UNROLL for (int panel = 0; panel < PANELS; panel += COPY_PANELS) {
    copy_box(target + panel * panel_bytes, map, full, map_column(panel), row, map_panel(panel), head, batch);
  }
}

// Returns the place of this lane's box of the block that begins at `key`; with one box to a block, the place of the
// block.
DEVICE KeyPlace find_box(const WgmmaTile& tile, const AttentionParams& a, int key) {
  const int lane = BOXES > 1 ? threadIdx.x % 32 : 0, first = key + lane * BOX_KEYS;
  // For keys after the last key: a box that begins before the tensor is read as zeros.
  KeyPlace place{-1, tile.kv_head, 0};
  if (lane < BOXES && first < keys_there(a, tile)) place = place_of_key(first, tile.kv_head, context_of(a, tile));
  return place;
}

// Copies this lane's box of a block of several boxes. In the map of GROUPED a box is the groups of eight rows of a
// page, and pages lie `page_groups` groups apart; or if page_groups is 0, a box is one of these groups.
DEVICE void copy_lanes_box(unsigned char* block, const TensorMap& map, Barrier& full, const KeyPlace& place,
                           [[maybe_unused]] int page_groups) {
  const int lane = threadIdx.x % 32;
  if constexpr (GROUPED) {
    unsigned char* const target = block + lane * (BOX_KEYS / 8 * KV_GROUP_BYTES);
    if (page_groups > 0) {
      copy_box(target, map, full, 0, 0, 0, place.head, place.batch * page_groups);
    } else {
#pragma unroll 1
      for (int group = 0; group < BOX_KEYS / 8; ++group) {
        copy_box(target + group * KV_GROUP_BYTES, map, full, 0, group * 8, 0, place.head, place.batch);
      }
    }
  } else {
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      copy_box(block + panel * KV_PANEL_BYTES + lane * BOX_KEYS * PANEL_ROW_BYTES, map, full, map_column(panel), 0,
               map_panel(panel), place.head, place.batch);
    }
  }
}

// Waits until the buffer is free, and then copies BLOCK_C rows of K or V to it. `place` is the result of find_box().
// `number` is the number of this producer.
DEVICE void copy_block(const TensorMap& map, Barrier& empty, Barrier& full, int region, const Ring<STAGES>& kv, int key,
                       const WgmmaTile& tile, [[maybe_unused]] const KeyPlace& place, [[maybe_unused]] int page_groups,
                       [[maybe_unused]] int number) {
  empty.wait(kv.parity ^ 1);
  if (BOXES == 1 || threadIdx.x == 0) full.arrive_expect(KV_BYTES);
  unsigned char* const block = memory + region + kv.index * KV_BYTES;
  if constexpr (PAGES_ARE_DEFAULT) {
    copy_panels(block, KV_PANEL_BYTES, map, full, key, tile.kv_head, tile.batch);
  } else if constexpr (BOXES == 1) {
    copy_panels(block, KV_PANEL_BYTES, map, full, place.row, place.head, place.batch);
  } else {
    const int lane = threadIdx.x % 32;
    if (lane < BOXES && lane % PRODUCERS == number) copy_lanes_box(block, map, full, place, page_groups);
  }
}

DEVICE void produce(const WgmmaParams& p, int number) {
  Barriers& bars = barriers();
  Ring<STAGES> kv;
  unsigned tile_parity = 0, q_parity = 0;
  while (true) {
    bars.tile_full.wait(tile_parity);
    tile_parity ^= 1;
    const WgmmaTile tile = bars.tile;
    [[maybe_unused]] bool& lost = bars.lost[tile_parity ^ 1];
    if (tile.blocks == no_more_tiles) break;
    const int first_key = KEYS_BEGIN_AT_ZERO ? 0 : bars.first_block * BLOCK_C;
    [[maybe_unused]] const int* const list = bars.list;
    const auto begin_of = [&](int key) { return MASK_LISTS ? (list[key / BLOCK_C] >> 1) * BLOCK_C : key; };
    // The place of a block's box is looked up one block ahead.
    [[maybe_unused]] KeyPlace place, next;
    if constexpr (!PAGES_ARE_DEFAULT) next = find_box(tile, p.attention, begin_of((tile.blocks - 1) * BLOCK_C));
    if constexpr (PRODUCERS > 1) __syncwarp();  // all lanes have read the tile before lane 0 arrives at tile_empty
    const bool leads = PRODUCERS == 1 || threadIdx.x % 32 == 0;
    bool first = true;
#pragma unroll 1  // this warpgroup has few registers
    for (int key = (tile.blocks - 1) * BLOCK_C; key >= first_key; key -= BLOCK_C) {
      const int from = begin_of(key);
      if constexpr (!PAGES_ARE_DEFAULT) {
        place = next;
        if (key > first_key) next = find_box(tile, p.attention, begin_of(key - BLOCK_C));
        if constexpr (KEYS_END_EARLY) {  // the thread that arrives at `full` writes `lost` too
          const int lane = BOXES > 1 ? threadIdx.x % 32 : 0;
          const bool none =
              lane < BOXES && from + lane * BOX_KEYS < keys_there(p.attention, tile) && !is_place(p.attention, place);
          if (BOXES > 1 ? __any_sync(~0u, none) : none) lost = true;
        }
      }
      if (key == first_key && leads) bars.tile_empty.arrive();
      copy_block(p.k, bars.k_empty[kv.index], bars.k_full[kv.index], layout.k, kv, from, tile, place, p.k_page_groups,
                 number);
      if (first && (PRODUCERS == 1 || threadIdx.x == 0)) {
#pragma unroll 1  // so that the kernel compiles faster
        for (int c = 0; c < CONSUMERS; ++c) {
          bars.q_empty[c].wait(q_parity ^ 1);
          bars.q_full[c].arrive_expect(PANELS * Q_PANEL_BYTES);
          copy_panels(memory + c * PANELS * Q_PANEL_BYTES, Q_PANEL_BYTES, p.q, bars.q_full[c],
                      tile.first_query + c * 64, tile.head, tile.batch);
        }
        q_parity ^= 1;
        first = false;
      }
      if constexpr (PRODUCERS > 1) __syncwarp();
      copy_block(p.v, bars.v_empty[kv.index], bars.v_full[kv.index], layout.v, kv, from, tile, place, p.v_page_groups,
                 number);
      kv.advance();
    }
  }
}

}  // namespace
