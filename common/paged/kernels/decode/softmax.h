// From the scores of a team's keys to their weights: scales, the score hook, masks and the online softmax.
#pragma once

#include "common/paged/kernels/decode/products.h"

namespace {

struct Softmax : Products {
  using Products::Products;

  DEVICE void begin_tile(const Place& here, unsigned char* q) {
    if constexpr (HOLD_Q) {
      UNROLL for (int step = 0; step < STEPS; ++step) load_queries(queries[step], q, step);
    }
    UNROLL for (int r = 0; r < HALVES; ++r) {
      shift[r] = lowest_score;
      sum[r] = 0;
      rows[r] = row_of(p, here, first_row + lane / 4 + 8 * r);
      if constexpr (SCALES_Q) q_scale[r] = *scale_of_row(q, first_row + lane / 4 + 8 * r);
      const KeyRange seen = visible_keys(rows[r].query, line.context_of(here.batch, rows[r].head, here.keys));
      begin[r] = seen.begin;
      end[r] = min(seen.end, here.keys);
    }
    UNROLL for (int i = 0; i < DIM / 2; ++i) o[i / 4][i % 4] = 0;
  }

  // Returns the scale of V for key `second` (0 or 1) of the thread's two keys in a group of eight keys.
  DEVICE float v_scale(int number, int group, int second) const {
    return scales(number, true)[group * 8 + 2 * quarter + second];
  }

  // Multiplies scores by the scales of K and Q, and applies hook and mask.
  DEVICE void finish_scores(const Place& here, int number, int first_key, bool masked) {
    UNROLL for (int i = 0; i < TEAM_KEYS / 2; ++i) {
      const int r = i / 2 % 2;
      if (r == HALVES) continue;
      const int column = i / 4 * 8 + 2 * quarter + i % 2, key = first_key + column;
      float& value = s[i / 4][i % 4];
      if constexpr (KV_BYTES == 1) value *= scales(number, false)[column];
      if constexpr (SCALES_Q) value *= q_scale[r];
      if constexpr (FOLD) {
        value = __fmul_rn(value, scale_log2);  // rounded, as the shift is, before the subtraction
      } else {
        value =
            score(__fmul_rn(value, p.scale), rows[r].query, key, line.context_of(here.batch, rows[r].head, here.keys));
      }
      if (masked && (key >= end[r] || (!KEYS_BEGIN_AT_ZERO && key < begin[r]))) value = -infinity();
    }
  }

  // Turns scores into weights exp2(s - shift), or exp(s - shift), and adds up the weights. A warp raises its rows'
  // shifts to the rows' maxima only when some row's maximum exceeds the row's shift by more than 8 in base 2. So
  // outputs are seldom rescaled (FlashAttention-4, 2025), and weights are at most 2^8. With a cache of 8 bits the
  // maximum is taken of the scores plus the logarithms of V's scales. So the products of weights and V's scales,
  // not the weights, are at most 2^8, and fit f16.
  DEVICE void softmax(int number) {
    constexpr float slack = FOLD ? 8 : 8 * ln_2, smallest_scale = 1e-30f;
    float largest[HALVES];
    bool grew = false;
    UNROLL for (int r = 0; r < HALVES; ++r) {
      largest[r] = -infinity();
      UNROLL for (int i = 0; i < TEAM_KEYS / 4; ++i) {
        float value = s[i / 2][2 * r + i % 2];
        if constexpr (KV_BYTES == 1) {
          value += (FOLD ? 1 : ln_2) * __log2f(fmaxf(v_scale(number, i / 2, i % 2), smallest_scale));
        }
        largest[r] = fmaxf(largest[r], value);
      }
      grew |= largest[r] > shift[r] + slack;
    }
    if (__any_sync(~0u, grew)) {
      UNROLL for (int r = 0; r < HALVES; ++r) {
        const float larger = fmaxf(maximum_of_quad(largest[r]), shift[r]);
        const float alpha = power(shift[r] - larger);
        shift[r] = larger;
        sum[r] *= alpha;
        UNROLL for (int i = 0; i < DIM / 4; ++i) o[i / 2][2 * r + i % 2] *= alpha;
      }
    }
    UNROLL for (int i = 0; i < TEAM_KEYS / 2; ++i) {
      const int r = i / 2 % 2;
      if (r == HALVES) continue;
      float& value = s[i / 4][i % 4];
      value = power(value - shift[r]);
      sum[r] += value;
      if constexpr (KV_BYTES == 1) value *= v_scale(number, i / 4, i % 2);
    }
  }
};

}  // namespace
