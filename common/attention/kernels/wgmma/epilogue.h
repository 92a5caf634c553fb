// The end of a tile of `wgmma`: a consumer divides its outputs by the rows' sums, and writes them to memory by threads
// (OUT_PANELS = 0) or by tensor copies.
#pragma once

#include "common/attention/kernels/wgmma/softmax.h"

namespace {

struct Epilogue : Softmax {
  using Softmax::Softmax;

  // Writes O / sum and the log-sum-exp to memory.
  DEVICE void store(const WgmmaTile& tile, [[maybe_unused]] const bool& lost) {
    const AttentionParams& a = p.attention;
    float inverse[2];
    bool exact = !KEYS_END_EARLY || !lost;
    UNROLL for (int r = 0; r < 2; ++r) {
      const float total = sum_of_quad(sum[r]);
      const bool seen = total != 0;
      inverse[r] = seen ? reciprocal_approx(total) : 0.0f;
      if constexpr (ONE_ROUNDING) exact = exact && shift_is_exact(shift[r], total, FOLD ? p.scale_log2 : 0);
      const int query = tile.first_query + index * 64 + row + r * 8;
      if (a.lse && thread % 4 == 0 && row_exists(a, query)) {
        const long long at = (static_cast<long long>(tile.batch) * a.q_heads + tile.head) * a.q_len + query;
        a.lse[at] = seen ? (ONE_ROUNDING ? shift[r] * ln_2 : shift[r]) + __logf(total) : -infinity();
      }
    }
    scale_o<DIM / 2>(inverse);
    if constexpr (OUT_PANELS > 0) {
      unsigned sums[2] = {};
      copy_output<0>(tile, sums);
      exact = exact && finite_pairs<OUT_TYPE>(sums[0], sums[1]);
    } else {
      store_output(tile);
      exact = exact && zeros_of_o<DIM / 2>() == 0;
    }
    if (!exact) keep_for_later(tile);
  }

  // Writes O to memory by the threads that hold it.
  DEVICE void store_output(const WgmmaTile& tile) {
    const AttentionParams& a = p.attention;
    float o[DIM / 2];
    read_o(o);
    UNROLL for (int r = 0; r < 2; ++r) {
      const int query = tile.first_query + index * 64 + row + r * 8;
      if (!row_exists(a, query)) continue;
      const long long base =
          tile.batch * a.o_strides.batch + tile.head * a.o_strides.head + query * a.o_strides.row + column;
      UNROLL for (int j = 0; j < HEAD_DIM / 8; ++j) {
        const float* d = o + 4 * j + 2 * r;
        if constexpr (OUT_TYPE == F32) {
          *reinterpret_cast<float2*>(static_cast<float*>(a.o) + base + j * 8) = make_float2(d[0], d[1]);
        } else {
          *reinterpret_cast<unsigned*>(static_cast<unsigned short*>(a.o) + base + j * 8) = pack<OUT_TYPE>(d[0], d[1]);
        }
      }
    }
  }

  // Writes O to memory by tensor copies, OUT_PANELS panels at a time, from the panel FIRST on. `sums` are the sums of
  // store_o.
  template <int FIRST>
  DEVICE void copy_output(const WgmmaTile& tile, unsigned (&sums)[2]) {
    constexpr int end = FIRST + OUT_PANELS < PANELS ? FIRST + OUT_PANELS : PANELS;
    unsigned char* const panels = memory + layout.o + index * OUT_PANELS * Q_PANEL_BYTES;
    const int query = tile.first_query + index * 64;
    if (thread == 0) wait_stores_read();  // until the previous panels have been read
    sync_consumer();
    // A lane gives the address of 16 bytes: one of two groups of 8 columns, in one of the warp's 16 rows. Within a row
    // of a panel the groups are permuted in the way that the copies expect (Swizzle::bytes_128).
    const int lane = thread % 32;
    const unsigned to =
        shared_address(panels) + (thread / 32 * 16 + lane % 16) * PANEL_ROW_BYTES + (lane / 16 ^ lane % 8) * 16;
    round_panels<FIRST * 8, end * 8 < DIM / 8 ? end * 8 : DIM / 8>(to, sums);
    fence_stores();
    sync_consumer();
    if (thread == 0 && row_exists(p.attention, query)) {  // a store of a box that begins before the tensor is a fault
      UNROLL for (int panel = FIRST; panel < end; panel += STORE_PANELS) {
        store_box(p.o, panels + (panel - FIRST) * Q_PANEL_BYTES, map_column(panel), query, map_panel(panel), tile.head,
                  tile.batch);
      }
      commit_stores();
    }
    __syncwarp();
    if constexpr (end < PANELS) copy_output<end>(tile, sums);
  }

  // Writes O's groups of eight columns from GROUP to END to panels in threadgroup memory.
  template <int GROUP, int END>
  DEVICE void round_panels(unsigned to, unsigned (&sums)[2]) {
    store_o<OUT_TYPE, 4 * GROUP>(to ^ GROUP % 8 * 16, sums);
    constexpr int next = GROUP + 2;
    if constexpr (next < END) round_panels<next, END>(next % 8 == 0 ? to + Q_PANEL_BYTES : to, sums);
  }

  // ---- rows that must be computed anew (exact_row.h). A warp keeps its 16 rows of a tile in a list until there are no
  // more tiles. If the code for these rows stood among the products, ptxas would do all products one after the other
  // (C7520).

  DEVICE int& first_kept() const { return barriers().first_kept[index * 4 + thread / WARP]; }

  // Adds the warp's 16 rows to the warp's list. One or several threads of the warp call this function.
  DEVICE void keep_for_later(const WgmmaTile& tile) {
#ifdef SCORE_AHEAD  // as in the #else, with one register fewer
    const int query = tile.first_query + (static_cast<int>(threadIdx.x) - WARPGROUP) / WARP * 16;
#else
    const int query = tile.first_query + index * 64 + thread / WARP * 16;
#endif
    const int number = (tile.batch * p.attention.q_heads + tile.head) * p.sixteens + query / 16 + p.sixteens_before;
    const int before = first_kept();
    if (before == number) return;
    p.next_kept[number] = before;
    first_kept() = number;
  }

  DEVICE void write_kept_rows() const {
    sync_consumer();
    const int* const of_warps = barriers().first_kept + 4 * index;
    const bool none = (of_warps[0] & of_warps[1] & of_warps[2] & of_warps[3]) == none_kept;  // -1 has all bits set
    if (OUT_PANELS > 0 && thread == 0) {  // a threadgroup must not end before the copies have read its memory
      if (none)
        wait_stores_read();
      else
        wait_stores();
    }
    if (none) return;
    sync_consumer();  // OUT_PANELS > 0: thread 0 has waited until the copies have written this consumer's rows of O
#pragma unroll 1
    for (int number = first_kept(); number != none_kept; number = p.next_kept[number]) {
      const int of_head = number / p.sixteens, query = (number % p.sixteens - p.sixteens_before) * 16;
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        if (!row_exists(p.attention, query + i)) continue;
        write_exact_row(
            AttentionRow(p.attention, of_head / p.attention.q_heads, of_head % p.attention.q_heads, query + i));
      }
    }
  }
};

}  // namespace
