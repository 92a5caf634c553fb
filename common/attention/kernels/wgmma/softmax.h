// From the scores of a block to the weights of a consumer of `wgmma`: the score hook, the masks and the online softmax.
#pragma once

#include "common/attention/kernels/wgmma/products.h"

#ifndef SCORE_IN
#define SCORE_IN 1.0f
#define SCORE_OUT 1.0f
#endif

namespace {

/// A place in a sequence, for hooks that take it as int and for hooks that take it as float (exact up to 2^24).
struct Place {
  int number;
  float value;
  DEVICE operator int() const { return number; }
  DEVICE operator float() const { return value; }
  DEVICE Place after(int count) const { return {number + count, value + static_cast<float>(count)}; }
};
DEVICE Place place(int number) { return {number, static_cast<float>(number)}; }

struct Softmax : Products {
  using Products::Products;

  // With LINEAR adds the part of the linear term that the product does not add.
  DEVICE float with_offset(float s, int r) const {
    if constexpr (LINEAR) s += offset[r];
    return s;
  }
  // Returns the score in the units of shifts. Without FOLD a score already has all factors except SCORE_OUT and
  // log2(e).
  DEVICE float scaled(float s) const { return ONE_ROUNDING ? s * (FOLD ? p.scale_log2 : SCORE_OUT * log2_e) : s; }
  // Converts the difference of a scaled score and a shift to base 2.
  DEVICE static float in_base_2(float difference) { return ONE_ROUNDING ? difference : difference * log2_e; }

  // ---- scores

  // Asks the mask hook about the block of `entry`, an entry of MaskLists. The hook may take long, so it runs while the
  // products run.
  DEVICE void find_seen(const WgmmaTile& tile, int entry) {
    if constexpr (!MASK_IS_NONE) {
      if (!(entry & 1)) return;
      const ScoreContext context = context_of(p.attention, tile);
      UNROLL for (int r = 0; r < 2; ++r) {
        seen[r].find(tile.first_query + index * 64 + row + r * 8, (entry >> 1) * BLOCK_C + column, context);
      }
      __syncwarp();  // a hook may branch, and the code after it needs whole warps
    }
  }

  // While the products of a block's scores run, reads the numbers that the score hook needs for these scores.
  DEVICE void read_ahead([[maybe_unused]] const WgmmaTile& tile, [[maybe_unused]] int block) {
#ifdef SCORE_AHEAD
    ahead.read(tile.first_query + index * 64 + row, block * BLOCK_C + column, context_of(p.attention, tile));
#endif
  }

  // Reads the block's scores, and applies the score hook and the masks of ranges. The blocks [hidden, visible) need no
  // mask: all rows see all keys of these blocks.
  DEVICE void read_scores(const WgmmaTile& tile, int block, int hidden, int visible) {
    const AttentionParams& a = p.attention;
    const int query = tile.first_query + index * 64 + row;
    const int key = block * BLOCK_C + column;
    const bool masked = block >= visible || (!KEYS_BEGIN_AT_ZERO && block < hidden);
    int begin[2], end[2];  // the keys that the rows see, counted from this thread's first key of the block
    UNROLL for (int r = 0; r < 2; ++r) {
      end[r] = a.kv_len - key;
      if constexpr (!KEYS_ARE_DEFAULT || CAUSAL) {
        const KeyRange seen = keys_of(a, tile, query + r * 8);
        end[r] = min(end[r], seen.end - key);
        begin[r] = seen.begin - key;
      }
    }
    if constexpr (LINEAR) {
      const int own = query + keys_there(a, tile) - a.q_len;
      UNROLL for (int r = 0; r < 2; ++r) offset[r] = slope * static_cast<float>(block * BLOCK_C - own - r * 8);
    }
    if constexpr (FOLD) {
      if (MASK_IS_NONE && block >= visible) mask_s<BLOCK_C / 2>(end, -infinity());
      if constexpr (!KEYS_BEGIN_AT_ZERO && MASK_IS_NONE) {
        if (block < hidden) mask_s_before<BLOCK_C / 2>(begin, -infinity());
      }
      read_s(s);
    } else {
      read_s(s);
      const ScoreContext context = context_of(a, tile);
      const float scale = SCORE_IN * a.scale;
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) s[i] *= scale;
#ifdef SCORE_AHEAD
      score_tile(s, BLOCK_C, query, key, context, ahead);
#elif SCORE_GRAIN == SCORE_TILE
      score_tile(s, BLOCK_C, query, key, context);
#else
      const Place first_query = place(query), first_key = place(key);
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
        s[i] = score(s[i], first_query.after(i / 2 % 2 * 8), first_key.after(i / 4 * 8 + i % 2), context);
      }
#endif
      if (MASK_IS_NONE && masked) {
        UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
          const int r = i / 2 % 2, from_first = i / 4 * 8 + i % 2;
          if (from_first >= end[r] || (!KEYS_BEGIN_AT_ZERO && from_first < begin[r])) s[i] = -infinity();
        }
      }
    }
  }

  // Hides scores according to the mask hook.
  DEVICE void mask_scores(int entry) {
    if constexpr (!MASK_IS_NONE) {
      if ((entry & 1) == 0) return;
      UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
        if (!seen[i / 2 % 2][i / 4 * 2 + i % 2]) s[i] = -infinity();
      }
    }
  }

  // ---- weights

  // Turns scores into weights e^(score - shift), in place, and adds the weights to the rows' sums. The shifts of the
  // warp's 16 rows stay until the maximum of some row exceeds its shift by more than 8 in base 2. Then each shift is
  // raised to its row's maximum, if the maximum is greater. So outputs are seldom rescaled (FlashAttention-4, 2025),
  // and no weight exceeds 2^8.
  DEVICE void softmax() {
    constexpr float slack = ONE_ROUNDING ? 8 : 8 * ln_2;
    float part[4] = {s[0], s[1], s[2], s[3]};  // four short chains, two for each row, because all else waits for them
    UNROLL for (int i = 4; i < BLOCK_C / 2; ++i) part[i % 4] = fmaxf(part[i % 4], s[i]);
    const float largest[2] = {with_offset(scaled(fmaxf(part[0], part[1])), 0),
                              with_offset(scaled(fmaxf(part[2], part[3])), 1)};
    grew = __any_sync(~0u, largest[0] > shift[0] + slack || largest[1] > shift[1] + slack);
    if (grew) {  // only in this case the four threads of a row compare their maxima
      UNROLL for (int r = 0; r < 2; ++r) {
        const float larger = fmaxf(maximum_of_quad(largest[r]), shift[r]);
        alpha[r] = exp2_approx(in_base_2(shift[r] - larger));
        shift[r] = larger;
        sum[r] *= alpha[r];
      }
    }
    if constexpr (LINEAR) {  // from here on, offset is the number that is subtracted from a scaled score
      UNROLL for (int r = 0; r < 2; ++r) offset[r] = shift[r] - offset[r];
    }
    UNROLL for (int i = 0; i < BLOCK_C / 2; ++i) {
      s[i] = exp2_approx(in_base_2(scaled(s[i]) - (LINEAR ? offset : shift)[i / 2 % 2]));
      sum[i / 2 % 2] += s[i];
    }
  }

  DEVICE void pack_weights() {
    UNROLL for (int i = 0; i < BLOCK_C / 4; ++i) weights[i] = pack<IN_TYPE>(s[2 * i], s[2 * i + 1]);
  }
};

}  // namespace
