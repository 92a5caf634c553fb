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

// Waits until the buffer is free, and then copies BLOCK_C rows of K (OF_KEYS) or V to it. If a block has several boxes,
// each lane of the warp looks up the place of one box, and a box has only one panel. `number` is the number of this
// producer.
template <bool OF_KEYS>
DEVICE void copy_block(const TensorMap& map, Barrier& empty, Barrier& full, int region, const Ring<STAGES>& kv, int key,
                       const WgmmaTile& tile, const AttentionParams& a, [[maybe_unused]] bool& lost,
                       [[maybe_unused]] int number) {
  if constexpr (PAGES_ARE_DEFAULT) {
    empty.wait(kv.parity ^ 1);
    full.arrive_expect(KV_BYTES);
    copy_panels(memory + region + kv.index * KV_BYTES, KV_PANEL_BYTES, map, full, key, tile.kv_head, tile.batch);
  } else {
    const int lane = BOXES > 1 ? threadIdx.x % 32 : 0, first = key + lane * BOX_KEYS;
    KeyPlace place{-1, 0, 0};  // for keys after the last key: a box that begins before the tensor is read as zeros
    const bool there = lane < BOXES && first < keys_there(a, tile);
    if (there) place = place_of_key(first, tile.kv_head, context_of(a, tile));
    if constexpr (KEYS_END_EARLY && OF_KEYS) {  // the thread that arrives at `full` writes `lost` too
      const bool none = there && !is_place(a, place);
      if (BOXES > 1 ? __any_sync(~0u, none) : none) lost = true;
    }
    unsigned char* const block = memory + region + kv.index * KV_BYTES;
    empty.wait(kv.parity ^ 1);
    if (BOXES == 1 || threadIdx.x == 0) full.arrive_expect(KV_BYTES);
    if constexpr (BOXES == 1) {
      copy_panels(block, KV_PANEL_BYTES, map, full, place.row, place.head, place.batch);
    } else {
#pragma unroll(CONSUMERS > 2 ? 1 : 2)
      for (int box = number; box < BOXES; box += PRODUCERS) {
        const int page = __shfl_sync(~0u, place.batch, box), row = __shfl_sync(~0u, place.row, box),
                  head = __shfl_sync(~0u, place.head, box);
        if (lane != 0) continue;
        UNROLL for (int panel = 0; panel < PANELS; ++panel) {
          copy_box(block + panel * KV_PANEL_BYTES + box * BOX_KEYS * PANEL_ROW_BYTES, map, full, map_column(panel), row,
                   map_panel(panel), head, page);
        }
      }
    }
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
    bool& lost = bars.lost[tile_parity ^ 1];
    if (tile.blocks == no_more_tiles) break;
    const int first_key = KEYS_BEGIN_AT_ZERO ? 0 : bars.first_block * BLOCK_C;
    [[maybe_unused]] const int* const list = bars.list;
    if constexpr (PRODUCERS > 1) __syncwarp();  // all lanes have read the tile before lane 0 arrives at tile_empty
    const bool leads = PRODUCERS == 1 || threadIdx.x % 32 == 0;
    bool first = true;
#pragma unroll 1  // this warpgroup has few registers
    for (int key = (tile.blocks - 1) * BLOCK_C; key >= first_key; key -= BLOCK_C) {
      const int from = MASK_LISTS ? (list[key / BLOCK_C] >> 1) * BLOCK_C : key;
      if (key == first_key && leads) bars.tile_empty.arrive();
      copy_block<true>(p.k, bars.k_empty[kv.index], bars.k_full[kv.index], layout.k, kv, from, tile, p.attention, lost,
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
      copy_block<false>(p.v, bars.v_empty[kv.index], bars.v_full[kv.index], layout.v, kv, from, tile, p.attention, lost,
                        number);
      kv.advance();
    }
  }
}

}  // namespace
