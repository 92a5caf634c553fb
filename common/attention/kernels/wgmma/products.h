// The two products of a consumer of `wgmma`, and their operands.
#pragma once

#define MMA_WIDTH(n) ((n) == BLOCK_C_VALUE || (n) == (HEAD_DIM_VALUE + 15) / 16 * 16)
#define B_HIGH_WORDS (KV_GROUP_BYTES / 16 | 1u << 30)
#include "common/attention/kernels/wgmma/warpgroup.h"
#include "common/kernel/base2.h"
#include "common/kernel/wgmma_named.h"

namespace {

using Mma_S = Mma<IN_TYPE, BLOCK_C>;
using Mma_O = Mma<IN_TYPE, DIM>;

struct Products : Warpgroup {
  using Warpgroup::Warpgroup;

  // Splits slope / scale into a sum of three parts. Each part is the rest that the earlier parts leave, rounded to the
  // type of Q.
  DEVICE void split_slope(float of_key) {
    slope = of_key * log2_e;
    float rest = of_key / p.attention.scale, parts[3];
    UNROLL for (int i = 0; i < 3; ++i) {
      const unsigned bits = pack<IN_TYPE>(rest, 0);
      parts[i] = load_float<IN_TYPE>(&bits, 0);
      rest -= parts[i];
    }
    const unsigned first = pack<IN_TYPE>(parts[0], parts[1]), second = pack<IN_TYPE>(parts[2], 0);
    slope_parts[0] = slope_parts[1] = thread % 4 == 0 ? first : thread % 4 == 1 ? second : 0;
    slope_parts[2] = slope_parts[3] = 0;
  }

  // Replaces this consumer's rows of Q by the results of the rotate hook, four columns and their partners (rotate.h) at
  // a time. Neighbouring threads take neighbouring columns of a row, so that they read whole lines of the tables.
  DEVICE void rotate_queries(const WgmmaTile& tile) {
    struct Four {
      float value[4];
    };
    unsigned char* const panels = memory + index * PANELS * Q_PANEL_BYTES;
#pragma unroll 2
    for (int unit = thread; unit < 64 * rotate_units(); unit += WARPGROUP) {
      const int own = unit / rotate_units(), query = tile.first_query + index * 64 + own;
      if (!row_exists(p.attention, query)) continue;
      // Groups of 16 bytes of a panel's row are permuted (Swizzle::bytes_128).
      const auto place_of = [&](int column) {
        const int group = column % PANEL_COLUMNS / 8 ^ own % 8;
        return reinterpret_cast<uint2*>(panels + column / PANEL_COLUMNS * Q_PANEL_BYTES + own * PANEL_ROW_BYTES +
                                        group * 16 + column % 8 * 2);
      };
      const auto load = [&](int column) {
        const uint2 pairs = *place_of(column);
        return Four{{load_float<IN_TYPE>(&pairs, 0), load_float<IN_TYPE>(&pairs, 1), load_float<IN_TYPE>(&pairs, 2),
                     load_float<IN_TYPE>(&pairs, 3)}};
      };
      const auto turned = [&](int column) -> uint2 {
        const Four four = rotate_query(load, query, column, context_of(p.attention, tile));
        return {pack<IN_TYPE>(four.value[0], four.value[1]), pack<IN_TYPE>(four.value[2], four.value[3])};
      };
      const int column = rotate_unit(unit % rotate_units()), partner = rotate_partner(column);
      const uint2 first = turned(column), second = turned(partner);
      *place_of(column) = first;
      *place_of(partner) = second;
    }
    fence_stores();
    sync_consumer();
  }

  // Writes zeros to the block's rows of V from `first` on. No query sees the keys of these rows. Other consumers write
  // the same zeros.
  DEVICE void clear_values(int stage, int first) {
    for (int unit = thread; unit < (BLOCK_C - first) * PANELS * 8; unit += WARPGROUP) {
      const int of_panel = unit % ((BLOCK_C - first) * 8), panel = unit / ((BLOCK_C - first) * 8);
      unsigned char* at =
          memory + layout.v + stage * KV_BYTES + panel * KV_PANEL_BYTES + first * PANEL_ROW_BYTES + of_panel * 16;
      if constexpr (GROUPED) at += (first + of_panel / 8) / 8 * (KV_GROUP_BYTES - 8 * PANEL_ROW_BYTES);
      *reinterpret_cast<uint4*>(at) = uint4{};
    }
    fence_stores();
    sync_consumer();
  }

  // Issues S = Q K^T of a block, 16 columns of Q and K a step. If no block is left, this function still issues the
  // first step, and nobody uses the result. If a branch could skip all products of S, ptxas would do all products one
  // after the other (C7515).
  DEVICE void multiply_scores(int stage, bool block_exists) {
    const unsigned q_tile = operand(memory + index * PANELS * Q_PANEL_BYTES);
    const unsigned k_block = operand(memory + layout.k + stage * KV_BYTES);
    mma_fence();
    if constexpr (LINEAR) Mma_S::narrow(slope_parts, narrow_operand(numbers()));
    Mma_S::shared(q_tile, k_block, LINEAR);
    if (block_exists) {
      mma_fence();
      UNROLL for (int step = 1; step < DIM / 16; ++step) {
        const int panel = step / 4, bytes = step % 4 * 32;
        Mma_S::shared(q_tile + (panel * Q_PANEL_BYTES + bytes) / 16, k_block + (panel * KV_PANEL_BYTES + bytes) / 16,
                      true);
      }
      mma_commit();
    } else {
      mma_commit();  // each branch has its own commit: with one commit after both branches, ptxas would add a product
    }
  }

  // Issues O += P V, or O = P V for the first block.
  DEVICE void multiply_outputs(int stage, bool first_block) {
    const unsigned v = operand(memory + layout.v + stage * KV_BYTES, KV_PANEL_BYTES);
    mma_fence();
    UNROLL for (int step = 0; step < BLOCK_C / 16; ++step) {
      Mma_O::registers(weights + 4 * step, v + step * 2 * KV_GROUP_BYTES / 16, step > 0 || !first_block);
    }
    mma_commit();
  }
};

}  // namespace
