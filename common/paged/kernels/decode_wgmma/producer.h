// The producers of `decode_wgmma`: warps whose lanes issue the tensor copies of K and V.
#pragma once

#include "common/paged/kernels/decode/schedule.h"
#include "common/paged/kernels/decode_wgmma/bytes.h"
#include "common/paged/kernels/decode_wgmma/setup.h"

namespace {

struct Producer {
  const DecodeWgmmaParams& p;
  const Line line{p.decode};
  const int unit = threadIdx.x % WARP * PRODUCERS + threadIdx.x / WARP;
  const int box = unit / (PANELS / BOX_PANELS), panel = unit % (PANELS / BOX_PANELS);
  Rings<SLOTS, BYTES ? 1 : TURNS> to;
  int entry = 0;  // BYTES: of the block's scales

  /// This lane's box of a block.
  struct Box {
    int key = -1, kv_head = 0;       // key: negative if the sequence ends before the box
    int page = -1;                   // -1: the copy brings zeros
    float k_scale = 1, v_scale = 1;  // BYTES
  };

  DEVICE explicit Producer(const DecodeWgmmaParams& params) : p(params) {}

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
  DEVICE void finish_box(Box& of) const {
    const KvCacheView& cache = p.decode.cache;
    if (of.key < 0) return;
    if (!is_page(cache, of.page)) {
      some_lost = true;
      of.page = -1;
      return;
    }
    if constexpr (BYTES) {
      const long long at = static_cast<long long>(of.page) * p.decode.kv_heads + of.kv_head;
      of.k_scale = __ldg(cache.k_scales + at);
      of.v_scale = __ldg(cache.v_scales + at);
    }
  }

  template <bool OF_KEYS>
  DEVICE void copy(const TensorMap& map, const Box& from) {
    Barriers& bars = barriers();
    const int number = to.number();
    Barrier &free = BYTES ? bars.taken[number] : bars.empty[number],
            &full = BYTES ? bars.copied[number] : bars.full[number];
    free.wait(to.ring.parity ^ 1);
    if constexpr (BYTES && OF_KEYS) {
      if (unit < UNITS) {
        float* const scales = scales_of_block(entry);
        scales[unit] = from.k_scale;
        scales[BOXES + unit] = from.v_scale;
      }
      entry = entry + 1 < SCALE_ENTRIES ? entry + 1 : 0;
      __syncwarp();
    }
    if (threadIdx.x == 0) full.arrive_expect(layout.slot_bytes);
    if (unit < UNITS) {
      unsigned char* const slot_of_box = BYTES
                                             ? copied_slot(number) + box * BOX_KEYS * HEAD_DIM
                                             : slot(number) + panel * KV_PANEL_BYTES + box * BOX_KEYS * PANEL_ROW_BYTES;
      copy_box(slot_of_box, map, full, WHOLE_PANELS ? 0 : panel * PANEL_COLUMNS, slot_of(max(from.key, 0)),
               WHOLE_PANELS ? panel : 0, from.kv_head, from.page);
    }
    to.ring.advance();
  }

  // Brings the queries of a tile that begins soon to the second-level cache.
  DEVICE void prefetch_queries(const Place& place) const {
    for (int number = threadIdx.x; number < ROWS; number += WARP) {
      const Row row = row_of(p.decode, place, number);
      if (!row.exists) break;
      const TensorStrides& strides = p.decode.q_strides;
      const char* const from = static_cast<const char*>(p.decode.q) +
                               (place.batch * strides.batch + row.head * strides.head + row.query * strides.row) * 2;
      for (int byte = 0; byte < HEAD_DIM * 2; byte += 128) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + byte));
      }
    }
  }

  // Copies the worker's blocks. A page is looked up four blocks ahead, and used, above all for the scales, two blocks
  // ahead: each of these loads takes as long as a block or two of 8 bits.
  DEVICE void run(Place ahead, long long count) {
    constexpr int found_ahead = 4, finished_ahead = 2;
    Box boxes[found_ahead + 1];
    UNROLL for (int i = 0; i < found_ahead; ++i) {
      if (i < count) boxes[i] = find_box(ahead);
      if (i + 1 < count) line.advance(ahead);
    }
    UNROLL for (int i = 0; i < finished_ahead; ++i) finish_box(boxes[i]);
    named_sync(queries_asked, CONSUMER_THREADS + PRODUCERS * WARP);
#pragma unroll 1
    for (; count > 0; --count) {
      finish_box(boxes[finished_ahead]);
      boxes[found_ahead] = Box();
      if (count > found_ahead) {
        if (ahead.block == 0 && threadIdx.x < WARP) prefetch_queries(ahead);
        boxes[found_ahead] = find_box(ahead);
        if (count > found_ahead + 1) line.advance(ahead);
      }
      copy<true>(p.k, boxes[0]);
      copy<false>(p.v, boxes[0]);
      to.turn();
      UNROLL for (int i = 0; i < found_ahead; ++i) boxes[i] = boxes[i + 1];
    }
  }
};

}  // namespace
