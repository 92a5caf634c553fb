// What host and kernel of the `wgmma` variant share. No other headers than the kernels' own.
#pragma once

#include "common/attention/kernels/attention.h"
#include "common/kernel/tensor_map.h"

/// BLOCK_R query rows of one head.
struct WgmmaTile {
  int batch, head, kv_head;
  int first_query;  // a multiple of 64, negative where the first consumers have no rows
  int blocks;       // of keys that some row sees, at least one; a keys hook has the kernel count them itself
};

/// Maps in [column][row][panel][head][batch]: a box is 64 columns by 64 rows of Q or O, or by BLOCK_C rows of K or V,
/// by all panels or by OUT_PANELS of O, whose map is for OUT_PANELS > 0. Where 64 does not divide head_dim, and columns
/// beyond it are to be read as zero, the tensor has one panel, of head_dim columns. With a pages hook
/// [row][head][batch] are coordinates that the hook gives, and where PAGE_KEYS are less than BLOCK_C boxes are of so
/// many rows and one panel.
struct WgmmaParams {
  TensorMap q, k, v, o;
  AttentionParams attention;
  float scale_log2;        // scale * log2(e)
  const WgmmaTile* tiles;  // in the order in which they are to be taken: those of a causal kernel take unlike times
  unsigned tile_count;
  unsigned* counters;  // of tiles taken and of threadgroups that are done, 0 before and after every launch
  /// Lists of 16 rows each, for the kernel alone: [batch, q_heads, sixteens], of which the first `sixteens_before` of a
  /// head lie before its first row, as those of tiles may.
  int* next_kept;
  int sixteens, sixteens_before;
};

/// Of 64 columns.
constexpr long long wgmma_panels(long long head_dim) { return (head_dim + 63) / 64; }

/// Threadgroup memory of the `wgmma` variant, in bytes: panels of 64 16-bit columns, each aligned to 1024 bytes by its
/// size, the numbers of a block's keys (16 16-bit columns) where a product adds a slope times them to the scores, then
/// the barriers. `out_panels` of every consumer are for outputs on their way to device memory.
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
