// The main loop of a consumer of `wgmma`: run() takes tiles, attend() walks the blocks of a tile.
#pragma once

#include "common/attention/kernels/wgmma/epilogue.h"

namespace {

struct Consumer : Epilogue {
  using Epilogue::Epilogue;

  DEVICE void run() {
    Barriers& bars = barriers();
    if constexpr (PING_PONG) {
      if (index == CONSUMERS - 1) pass_turn();  // consumer 0 begins
    }
    Ring<STAGES> kv;
    unsigned tile_parity = 0, q_parity = 0;
    while (true) {
      bars.tile_full.wait(tile_parity);
      tile_parity ^= 1;
      const WgmmaTile tile = bars.tile;
      const int first_block = KEYS_BEGIN_AT_ZERO ? 0 : bars.first_block;
      [[maybe_unused]] const int* const list = bars.list;
      bars.tile_empty.arrive();
      if (tile.blocks == no_more_tiles) break;
      // A row with a sink begins with the sink as its shift. At this shift the sink's weight is 1, and one of the row's
      // four threads adds this weight to its sum.
      const float sink = SINK_IS_NONE ? -infinity() : sink_logit(context_of(p.attention, tile));
      UNROLL for (int r = 0; r < 2; ++r) {
        shift[r] = fmaxf(ONE_ROUNDING ? log2_e * sink : sink, lowest_score);
        sum[r] = !SINK_IS_NONE && thread % 4 == 0 ? first_weight(sink) : 0;
      }
      if constexpr (LINEAR) split_slope(score_slope(context_of(p.attention, tile)));
      bars.q_full[index].wait(q_parity);
      q_parity ^= 1;
      if constexpr (!ROTATE_IS_IDENTITY) rotate_queries(tile);
      attend(tile, first_block, list, kv);
      store(tile, bars.lost[tile_parity ^ 1]);
    }
  }

  // Hands back the buffers of blocks that only other consumers use: the blocks from `from` - 1 down to `to`.
  DEVICE void hand_back(int from, int to, Ring<STAGES>& kv) {
    Barriers& bars = barriers();
#pragma unroll 1
    for (int block = from; block > to; --block) {
      bars.k_full[kv.index].wait(kv.parity);
      bars.v_full[kv.index].wait(kv.parity);
      // No product keeps the warps together here. A late warp would miss a phase of a barrier and wait for ever.
      if constexpr (!PING_PONG) sync_consumer();
      wait_turn();
      pass_turn();
      release(bars.k_empty[kv.index]);
      release(bars.v_empty[kv.index]);
      kv.advance();
    }
  }

  DEVICE void attend(const WgmmaTile& tile, int first_block, [[maybe_unused]] const int* list, Ring<STAGES>& kv) {
    Barriers& bars = barriers();
    const AttentionParams& a = p.attention;
    const int query = tile.first_query + index * 64;
    const int last_query = min(query + 64, a.q_len) - 1;
    const int end = row_exists(a, query) ? key_end(a, tile, last_query) : 0;
    // This consumer walks the blocks from own - 1 down to `last`: the blocks that its rows see, or with MASK_LISTS the
    // tile's whole list. A consumer walks at least one block of the tile.
    int own = max((end + BLOCK_C - 1) / BLOCK_C, first_block + 1);
    if constexpr (!KEYS_ARE_DEFAULT) own = min(own, tile.blocks);
    if constexpr (MASK_LISTS) own = tile.blocks;
    int last = KEYS_BEGIN_AT_ZERO ? 0 : max(first_block, min(key_begin(a, tile, query) / BLOCK_C, own - 1));
    if constexpr (MASK_LISTS) last = 0;
    const int visible = key_end(a, tile, query) / BLOCK_C;  // blocks from `visible` on need a mask
    const int hidden = (key_begin(a, tile, last_query) + BLOCK_C - 1) / BLOCK_C;  // blocks before `hidden` too
    [[maybe_unused]] const int there = keys_there(a, tile);
    hand_back(tile.blocks, own, kv);
    // An iteration issues Q K^T of a block, and P V of the block before it in the walk. The first iteration has no P V.
    // After the last block comes one more iteration, which has no Q K^T. The loop's body stands here only once, because
    // one copy compiles faster than several.
    Ring<STAGES> previous = kv;
    bool first = true;
#pragma unroll 1
    for (int block = own - 1;; --block) {
      if (block >= last) {
        bars.k_full[kv.index].wait(kv.parity);
        wait_turn();
      }
      const int entry = MASK_IS_NONE || block < last ? 0 : MASK_LISTS ? list[block] : 2 * block + 1;
      multiply_scores(kv.index, block >= last);
      if (block >= last) read_ahead(tile, MASK_IS_NONE ? block : entry >> 1);
      if (first) {
        pass_turn();
        find_seen(tile, entry);
        mma_wait<0>();
      } else {
        bars.v_full[previous.index].wait(previous.parity);
        if constexpr (KEYS_END_EARLY) {
          const int of_block = there - (block + 1) * BLOCK_C;
          if (of_block < BLOCK_C) clear_values(previous.index, max(of_block, 0));
        }
        multiply_outputs(previous.index, block == own - 2);
        if (block >= last) pass_turn();
        find_seen(tile, entry);
        mma_wait<1>();
      }
      if (block < last) break;
      release(bars.k_empty[kv.index]);
      if (block == last) release(bars.q_empty[index]);
      read_scores(tile, MASK_IS_NONE ? block : entry >> 1, hidden, visible);
      mask_scores(entry);
      softmax();
      mma_wait<0>();
      if (!first) release(bars.v_empty[previous.index]);
      pack_weights();  // before the branch, so that the compiler packs between the exponentials
      if (grew && !first) scale_o<DIM / 2>(alpha);
      first = false;
      previous = kv;
      kv.advance();
    }
    mma_wait<0>();
    release(bars.v_empty[previous.index]);
    if constexpr (!KEYS_BEGIN_AT_ZERO) hand_back(last, first_block, kv);
  }
};

}  // namespace
