// Parameters and memory layout that host and kernel of the `wgmma` variant share. This file includes only headers of
// kernels.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/kernel/tensor_map.h"

/// BLOCK_R query rows of one head.
struct WgmmaTile {
  int batch, head, kv_head;
  /// A multiple of 64. If it is negative, the tile begins before the first query, and the first consumers (warpgroups
  /// that compute 64 rows each) have no rows.
  int first_query;
  /// The number of the last block with a key that some row of the tile sees, plus 1; at least 1. With a keys hook the
  /// kernel finds this number itself. With a list of key blocks (mask_lists.h) the kernel sets `blocks` to the number
  /// of the list's entries, or to 1 if the list is empty.
  int blocks;
};

/// The dimensions of a tensor map are, innermost first, column, row, panel, head and batch. A box of Q is 64 columns by
/// 64 rows by all panels. A box of K or V is 64 columns by BLOCK_C rows by all panels. A box of O is 64 columns by 64
/// rows by OUT_PANELS panels; there is a map of O only if OUT_PANELS > 0. If 64 does not divide head_dim, columns
/// beyond head_dim must be read as zero: the tensor then has one panel of head_dim columns, and a box has one panel.
/// With a pages hook, the hook gives the coordinates row, head and batch of a box of K or V. If PAGE_KEYS is less than
/// BLOCK_C, a box of K or V has PAGE_KEYS rows and one panel; but if rows have several whole panels, it has all panels,
/// in the order of GroupedMap.
struct WgmmaParams {
  TensorMap q, k, v, o;
  AttentionParams attention;
  float scale_log2;        // scale * log2(e)
  const WgmmaTile* tiles;  // in the order in which threadgroups take them (common/backends/cuda/wgmma_schedule.h)
  unsigned tile_count;
  /// [0] counts how often threadgroups have asked for another tile after their first tile. [1] counts the threadgroups
  /// that have found no more tiles. Both counters are 0 before and after every launch.
  unsigned* counters;
  /// An array [batch, q_heads, sixteens] that only the kernel uses. The array has an element for each group of 16 rows
  /// of a head. The array holds a linked list for each warp: the groups that the warp computes anew after its last
  /// tile. The first `sixteens_before` groups of a head lie before its first row, because a tile may begin there.
  int* next_kept;
  int sixteens, sixteens_before;
  int k_page_groups, v_page_groups;  // with boxes of all panels of a page: GroupedMap::page_groups
};

/// How many panels of 64 columns a row has.
constexpr long long wgmma_panels(long long head_dim) { return (head_dim + 63) / 64; }

/// Threadgroup memory of the `wgmma` variant, in bytes. First come panels of 64 columns of 16 bits. The size of a
/// panel is a multiple of 1024 bytes, so every panel is aligned to 1024 bytes. If a product adds a slope times the
/// number of a key to the scores, the numbers of a block's keys follow, in 16 columns of 16 bits. The barriers come
/// last. Each consumer has `out_panels` panels for outputs on their way to device memory.
struct WgmmaLayout {
  static constexpr long long barrier_bytes = 512;

  long long stages, panels, out_panels, q_bytes, kv_bytes, k, v, o, barriers, bytes;

  constexpr WgmmaLayout(long long head_dim, long long block_r, long long block_c, long long stage_count,
                        long long panels_of_output, bool has_numbers)
      : stages(stage_count),
        panels(wgmma_panels(head_dim)),
        out_panels(panels_of_output),
        q_bytes(panels * block_r * 128),
        kv_bytes(panels * block_c * 128),
        k(q_bytes),
        v(k + stages * kv_bytes),
        o(v + stages * kv_bytes),
        barriers(o + out_panels * block_r * 128 + (has_numbers ? block_c * 32 : 0)),
        bytes(barriers + barrier_bytes) {}
};
