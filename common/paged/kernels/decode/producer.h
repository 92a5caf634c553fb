// The copies of `decode`. A thread copies its units (16 bytes) of a block, and finds the pages of its units of the next
// block.
#pragma once

#include "common/paged/kernels/decode/new_tokens.h"

namespace {

struct Producer : Appends {
  using Appends::Appends;

  DEVICE int unit_of(int copy) const { return threadIdx.x % TEAM_THREADS + copy * TEAM_THREADS; }
  DEVICE void find_pages() {
    if (blocks_left == 0) return;
    UNROLL for (int copy = 0; copy < (ONE_PAGE ? 1 : COPIES); ++copy) {
      pages[copy] = page_of(ahead, first_key_of(ahead) + (ONE_PAGE ? 0 : unit_of(copy) / ROW_UNITS));
    }
  }

  // Checks the pages that find_pages() has loaded, directly before their first use. Replaces pages that the cache does
  // not have by pages that it has.
  DEVICE void check_pages() {
    if constexpr (PAGE_SIZE > 0) {
      unsigned largest = 0;
      const unsigned last = p.cache.pages - 1;
      UNROLL for (int& page : pages) {
        largest = max(largest, static_cast<unsigned>(page));
        page = min(max(page, 0), static_cast<int>(last));
      }
      if (largest > last) some_lost = true;
    }
  }

  // HAS_NEW: some rows may belong to new tokens.
  template <bool HAS_NEW>
  DEVICE void copy_rows(int number, bool v, int first_key) const {
    const TensorStrides& strides = v ? p.cache.v_strides : p.cache.k_strides;
    const long long row_bytes = strides.row * KV_BYTES, page_bytes = strides.batch * KV_BYTES;
    const char* const head =
        static_cast<const char*>(v ? p.cache.v : p.cache.k) + ahead.kv_head * strides.head * KV_BYTES;
    // The address of the first row, if all rows are on one page.
    const char* const rows = head + pages[0] * page_bytes + slot_of(first_key) * row_bytes;
    const unsigned to = rows_of_team(number, v);
    UNROLL for (int copy = 0; copy < COPIES; ++copy) {
      const int unit = unit_of(copy), row = unit / ROW_UNITS, column = unit % ROW_UNITS;
      if (UNITS % TEAM_THREADS != 0 && unit >= UNITS) break;
      const bool there = first_key + row < ahead.keys && (ROW_UNITS == UNITS_THERE || column < UNITS_THERE);
      const char* from =
          ONE_PAGE ? rows + row * row_bytes : head + pages[copy] * page_bytes + slot_of(first_key + row) * row_bytes;
      if constexpr (HAS_NEW) {
        if (const int token = first_key + row - first_new(ahead); token >= 0) from = new_row(ahead, token, v);
      }
      copy_16_of_line(to + row * layout.row_bytes + column * 16, there ? from + column * 16 : head, there);
    }
  }

  DEVICE void copy_scales(int number, int first_key) const {
    for (int row = threadIdx.x % TEAM_THREADS; row < TEAM_KEYS; row += TEAM_THREADS) {
      const int named = ONE_PAGE ? pages[0] : page_of(ahead, first_key + row);
      const int page = is_page(p.cache, named) ? named : 0;
      const long long at = static_cast<long long>(page) * p.kv_heads + ahead.kv_head;
      copy_4(shared_address(scales(number, false) + row), p.cache.k_scales + at);
      copy_4(shared_address(scales(number, true) + row), p.cache.v_scales + at);
    }
  }

  // Copies the tile's rows of Q, by all threads.
  DEVICE void copy_queries() const {
    constexpr int row_units = DIM * Q_BYTES / 16, units_there = HEAD_DIM * Q_BYTES / 16;
    const unsigned to = shared_address(q_slot(slot));
    for (int unit = threadIdx.x; unit < ROWS * row_units; unit += THREADS) {
      const int number = unit / row_units, column = unit % row_units;
      const Row row = row_of(p, ahead, number);
      const long long at = ahead.batch * p.q_strides.batch + row.head * p.q_strides.head + row.query * p.q_strides.row;
      copy_16(to + number * layout.q_row_bytes + column * 16,
              static_cast<const char*>(p.q) + at * Q_BYTES + column * 16 % (units_there * 16),
              row.exists && column < units_there);
    }
  }

  // Copies the next block to a stage. Commits a group of copies, even if no block is left.
  DEVICE void copy_next(int number, bool first) {
    if (blocks_left > 0) {
      if (!first && ahead.block == 0) slot = slot + 1 < STAGES ? slot + 1 : 0;
      if (first || ahead.block == 0) {
        copy_queries();
        if constexpr (APPENDS && ROTARY_DIM > 0) ask_for_angles(ahead);
      }
      check_pages();
      const int first_key = first_key_of(ahead);
      if (APPENDS && first_key + TEAM_KEYS > first_new(ahead)) {
        copy_rows<APPENDS>(number, false, first_key);
        copy_rows<APPENDS>(number, true, first_key);
      } else {
        copy_rows<false>(number, false, first_key);
        copy_rows<false>(number, true, first_key);
      }
      if constexpr (KV_BYTES == 1) copy_scales(number, first_key);
      line.advance(ahead);
      --blocks_left;
      find_pages();
    }
    commit_copies();
  }
};

}  // namespace
