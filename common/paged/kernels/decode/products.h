// The two products of a team of `decode`, and their operands.
#pragma once

#include "common/paged/kernels/decode/producer.h"

namespace {

struct Products : Producer {
  using Producer::Producer;

  // Loads the operand A of a step: 16 rows of Q, and as many columns as 32 bytes of a row of the cache hold. With a
  // cache of 8 bits these are 32 columns, for two products; this thread has columns 4 * quarter to 4 * quarter + 3 of
  // the 16 columns of a product.
  DEVICE void load_queries(unsigned (&a)[PRODUCTS][4], const unsigned char* q, int step) const {
    if constexpr (KV_BYTES > 1) {
      // If the tile has no rows 8 to 15, rows 0 to 7 are loaded twice; no thread reads the results of the second copy.
      load_blocks(a[0], shared_address(q) + (first_row + lane % (8 * HALVES)) * layout.q_row_bytes + step * 32 +
                            lane / 16 * 16);
    } else {
      UNROLL for (int half = 0; half < 2; ++half) {
        const unsigned char* const at =
            q + (first_row + lane / 4) * layout.q_row_bytes + ((2 * step + half) * 16 + 4 * quarter) * 2;
        const uint2 first = *reinterpret_cast<const uint2*>(at);
        const uint2 second = *reinterpret_cast<const uint2*>(at + (HALVES - 1) * 8 * layout.q_row_bytes);
        a[half][0] = first.x;
        a[half][1] = second.x;
        a[half][2] = first.y;
        a[half][3] = second.y;
      }
    }
  }

  // Returns the address of the scale of a row of Q. The scale is stored after the columns of the row.
  DEVICE static float* scale_of_row(unsigned char* q, int row) {
    return reinterpret_cast<float*>(q + row * layout.q_row_bytes + DIM * Q_BYTES);
  }
  // Converts the tile's queries in threadgroup memory from bf16 to f16. Divides each row by the largest power of 2 that
  // is not above the row's largest magnitude. All threads call this function.
  DEVICE void scale_queries(unsigned char* q) const {
    constexpr int words = DIM / 2, turns = (words + WARP - 1) / WARP;
    for (int row = threadIdx.x / WARP; row < ROWS; row += THREADS / WARP) {
      auto* const pairs = reinterpret_cast<unsigned*>(q + row * layout.q_row_bytes);
      unsigned mine[turns], largest = 0;
      UNROLL for (int i = 0; i < turns; ++i) {
        const int word = lane + i * WARP;
        mine[i] = word < words ? pairs[word] : 0;
        largest = max(largest, max(mine[i] & 0x7fff, mine[i] >> 16 & 0x7fff));
      }
      const unsigned exponent = min(max(__reduce_max_sync(~0u, largest) >> 7, 1u), 253u);
      const float down = __uint_as_float((254 - exponent) << 23);
      UNROLL for (int i = 0; i < turns; ++i) {
        const int word = lane + i * WARP;
        const float low = __uint_as_float(mine[i] << 16), high = __uint_as_float(mine[i] & 0xffff0000u);
        if (word < words) pairs[word] = pack<F16>(low * down, high * down);
      }
      if (lane == 0) *scale_of_row(q, row) = __uint_as_float(exponent << 23);
    }
  }

  // S = Q K^T of the team's keys.
  DEVICE void multiply_scores(int number, const unsigned char* q) {
    UNROLL for (int i = 0; i < TEAM_KEYS / 2; ++i) s[i / 4][i % 4] = 0;
    const unsigned k = rows_of_team(number, false) + (lane % 8 + lane / 16 * 8) * layout.row_bytes + lane / 8 % 2 * 16;
    UNROLL for (int step = 0; step < STEPS; ++step) {
      unsigned(&a)[PRODUCTS][4] = queries[HOLD_Q ? step : 0];
      if constexpr (!HOLD_Q) load_queries(a, q, step);
      UNROLL for (int keys = 0; keys < TEAM_KEYS; keys += 16) {
        unsigned words[4];
        load_blocks(words, k + keys * layout.row_bytes + step * 32);
        UNROLL for (int n = 0; n < 2; ++n) {
          float(&d)[4] = s[keys / 8 + n];
          if constexpr (KV_BYTES == 1) {
            UNROLL for (int half = 0; half < 2; ++half) {
              const unsigned four = words[2 * n + half];
              multiply_add<F16>(d, a[half], pair_of_four<CACHE_TYPE, 0, 1>(four), pair_of_four<CACHE_TYPE, 2, 3>(four));
            }
          } else {
            multiply_add_exactly<IN_TYPE>(d, a[0], words[2 * n], words[2 * n + 1]);
          }
        }
      }
    }
  }

  // O += P V. With f32 this thread has keys 2 * quarter and 2 * quarter + 1 of eight.
  DEVICE void multiply_outputs(int number) {
    const unsigned v = rows_of_team(number, true);
    if constexpr (KV_BYTES == 4) {
      UNROLL for (int keys = 0; keys < TEAM_KEYS; keys += 8) {
        const float(&w)[4] = s[keys / 8];
        const unsigned a[4] = {__float_as_uint(w[0]), __float_as_uint(w[2]), __float_as_uint(w[1]),
                               __float_as_uint(w[3])};
        const unsigned row = v + (keys + 2 * quarter) * layout.row_bytes + lane / 4 * 4;
        UNROLL for (int j = 0; j < DIM / 8; ++j) {
          multiply_add_exactly<F32>(o[j], a, load_word(row + j * 32), load_word(row + layout.row_bytes + j * 32));
        }
      }
    } else {
      UNROLL for (int keys = 0; keys < TEAM_KEYS; keys += 16) {
        const float(&w)[4] = s[keys / 8], (&next)[4] = s[keys / 8 + 1];
        const unsigned a[4] = {pack<OPERAND_TYPE>(w[0], w[1]), HALVES == 1 ? 0 : pack<OPERAND_TYPE>(w[2], w[3]),
                               pack<OPERAND_TYPE>(next[0], next[1]),
                               HALVES == 1 ? 0 : pack<OPERAND_TYPE>(next[2], next[3])};
        const unsigned row = v + (keys + lane % 16) * layout.row_bytes + lane / 16 * 16;
        UNROLL for (int step = 0; step < STEPS; ++step) {
          unsigned words[4];
          load_blocks_transposed(words, row + step * 32);
          UNROLL for (int n = 0; n < 2; ++n) {
            const unsigned low = words[2 * n], high = words[2 * n + 1];
            if constexpr (KV_BYTES == 1) {
              multiply_add<F16>(o[4 * step + 2 * n], a, pair_of_four<CACHE_TYPE, 0, 2>(low),
                                pair_of_four<CACHE_TYPE, 0, 2>(high));
              multiply_add<F16>(o[4 * step + 2 * n + 1], a, pair_of_four<CACHE_TYPE, 1, 3>(low),
                                pair_of_four<CACHE_TYPE, 1, 3>(high));
            } else {
              multiply_add<IN_TYPE>(o[2 * step + n], a, low, high);
            }
          }
        }
      }
    }
  }
  // Returns the column of o[j][i], i from 0 to 1. With a cache of 8 bits neighbouring columns of V lie in neighbouring
  // products.
  DEVICE int column_of(int j, int i) const {
    return KV_BYTES == 1 ? j / 2 * 16 + 4 * quarter + 2 * i + j % 2 : j * 8 + 2 * quarter + i;
  }
};

}  // namespace
