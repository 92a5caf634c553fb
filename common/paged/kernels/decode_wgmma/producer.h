// The producers of `decode_wgmma`: warps whose lanes issue the tensor copies of K and V.
#pragma once

#include "common/paged/kernels/decode/schedule.h"
#include "common/paged/kernels/decode_wgmma/setup.h"

namespace {

struct Producer {
  const DecodeWgmmaParams& p;
  const Line line{p.decode};
  const int unit = threadIdx.x % WARP * PRODUCERS + threadIdx.x / WARP;
  const int box = unit / (PANELS / BOX_PANELS), panel = unit % (PANELS / BOX_PANELS);
  Operands to;

  DEVICE explicit Producer(const DecodeWgmmaParams& params) : p(params) {}

  // Returns the page that has this lane's box of the block, or -1: the copy then brings zeros.
  DEVICE int find_page(const Place& place) const {
    if constexpr (PAGE_SIZE == 0) return place.batch;
    const int key = (place.first_block + place.block) * BLOCK_C + box * BOX_KEYS;
    if (unit >= UNITS || key >= place.keys) return -1;
    const int page = named_page(p.decode.cache, place.batch, key);
    if (is_page(p.decode.cache, page)) return page;
    some_lost = true;
    return -1;
  }

  DEVICE void copy(const TensorMap& map, const Place& place, int page) {
    Barriers& bars = barriers();
    const int number = to.number();
    bars.empty[number].wait(to.ring.parity ^ 1);
    if (threadIdx.x == 0) bars.full[number].arrive_expect(layout.slot_bytes);
    if (unit < UNITS) {
      const int key = (place.first_block + place.block) * BLOCK_C + box * BOX_KEYS;
      copy_box(slot(number) + panel * KV_PANEL_BYTES + box * BOX_KEYS * PANEL_ROW_BYTES, map, bars.full[number],
               WHOLE_PANELS ? 0 : panel * PANEL_COLUMNS, slot_of(key), WHOLE_PANELS ? panel : 0, place.kv_head, page);
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

  // Copies the worker's blocks. The page of a block is looked up before the copies of the block before it wait.
  DEVICE void run(Place place, long long count) {
    int page = find_page(place);
    named_sync(queries_asked, CONSUMER_THREADS + PRODUCERS * WARP);
#pragma unroll 1
    for (; count > 0; --count) {
      const Place here = place;
      const int its_page = page;
      if (count > 1) {
        line.advance(place);
        if (place.block == 0 && threadIdx.x < WARP) prefetch_queries(place);
        page = find_page(place);
      }
      copy(p.k, here, its_page);
      copy(p.v, here, its_page);
      to.turn();
    }
  }
};

}  // namespace
