// What a warp of 16 tokens computes for gates by channel: scores within the 16 tokens, and the decays of its queries
// and keys. scores.h gives the method. Used by `fused`, and by `decay_chunks`.
//
// A lane holds the tokens lane / 4 and lane / 4 + 8, and of these two tokens four channels at a time.
// A file includes the feature map, which may be included only once, before this file.
#pragma once

#include "common/kernel/ampere.h"
#include "common/kernel/base2.h"

namespace {

DEVICE float2 floats_of_pair(unsigned pair) {
  float low, high;
  if constexpr (IN_TYPE == BF16) {
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xFFFF0000u);
  } else {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(pair));
  }
  return {low, high};
}

/// A thread's four channels of its two tokens.
using Four = float[2][4];

/// Scores of blocks of one size, within 16 tokens: [0] has the tokens with the first eight of them, [1] with the last
/// eight. Only the first rows of [0], and only the last rows of [1], count.
using Pair = float[2][4];
struct Diagonals {
  Pair same, pairs, fours, eights;
  float sixteens[4];  // the last rows count
};

// Packs four channels of two tokens: the operand A of 16 tokens, or the operands B of twice 8 tokens, {0, 2} and {1,
// 3}. {0, 1} and {2, 3} are the operands A of eight columns each.
DEVICE void pack_four(unsigned (&to)[4], const Four& x) {
  UNROLL for (int r = 0; r < 2; ++r) {
    to[r] = pack<IN_TYPE>(x[r][0], x[r][1]);
    to[2 + r] = pack<IN_TYPE>(x[r][2], x[r][3]);
  }
}
// D[16 x 8] += A[16 x 8] B[8 x 8]. A row of D depends only on the same row of A, also if other rows are NaN.
DEVICE void multiply_eight(float (&d)[4], unsigned a0, unsigned a1, unsigned b) {
#define MULTIPLY_EIGHT(NAME)                                 \
  asm("mma.sync.aligned.m16n8k8.row.col.f32." NAME "." NAME  \
      ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, " \
      "%3};"                                                 \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])       \
      : "r"(a0), "r"(a1), "r"(b))
  if constexpr (IN_TYPE == BF16) {
    MULTIPLY_EIGHT("bf16");
  } else {
    MULTIPLY_EIGHT("f16");
  }
#undef MULTIPLY_EIGHT
}
// Adds the products of 16 tokens, in two steps of eight columns: a step's operand B has no other order of registers
// than its operand A.
DEVICE void multiply_diagonal(Pair& score, const unsigned (&queries)[4], const unsigned (&keys)[4]) {
  UNROLL for (int i = 0; i < 4; ++i) {
    multiply_eight(score[i % 2], queries[i / 2 * 2], queries[i / 2 * 2 + 1], keys[i]);
  }
}

// Multiplies the first number by a factor if `first`, else the second.
DEVICE void multiply_one(bool first, float& a, float& b, float by) {
  asm("{.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n@p mul.ftz.f32 %0, %0, %2;\n@!p mul.ftz.f32 %1, %1, %2;}"
      : "+f"(a), "+f"(b)
      : "f"(by), "r"(static_cast<int>(first)));
}

// Adds the scores of blocks of two halves, which lie STEP lanes apart, and joins the halves. q has the decays since
// the start of its half, k those to the end of its half, and `all` is the decay over the half.
template <bool WITH_Q, int STEP>
DEVICE void join(int lane, Pair& score, Four& q, Four& k, Four& all) {
  const bool later = lane & STEP;
  if constexpr (WITH_Q) {
    Four x;
    UNROLL for (int i = 0; i < 8; ++i) x[i / 4][i % 4] = later ? q[i / 4][i % 4] : k[i / 4][i % 4];
    unsigned words[4];
    pack_four(words, x);
    multiply_diagonal(score, words, words);
  }
  UNROLL for (int i = 0; i < 8; ++i) {
    const float other = __shfl_xor_sync(~0u, all[i / 4][i % 4], STEP);
    multiply_one(later, q[i / 4][i % 4], k[i / 4][i % 4], other);
    all[i / 4][i % 4] *= other;
  }
}
DEVICE void scale_four(Four& x, float4 by) {
  UNROLL for (int r = 0; r < 2; ++r) x[r][0] *= by.x, x[r][1] *= by.y, x[r][2] *= by.z, x[r][3] *= by.w;
}

// Reads f(x) of a step's channels from two tokens' eight channels. What is not there becomes 0; if f is the identity,
// it is 0 already.
DEVICE void take(Four& to, const uint4 (&from)[2], int step, const bool (&there)[2], const void* feature_data) {
  UNROLL for (int r = 0; r < 2; ++r) {
    const float2 low = floats_of_pair(step ? from[r].z : from[r].x),
                 high = floats_of_pair(step ? from[r].w : from[r].y);
    const float x[4] = {low.x, low.y, high.x, high.y};
    UNROLL for (int c = 0; c < 4; ++c) {
      to[r][c] = FEATURE_IS_IDENTITY || there[r] ? feature(x[c], feature_data) : 0.0f;
    }
  }
}

/// Multiplies k, four channels of the 16 tokens, by its decays to their end. `gate` has the gates; `all` becomes the
/// decay over the first and over the last eight tokens. WITH_Q: multiplies q by its decays since the start, and adds
/// the scores of the channels. q_words and k_words are what take() has read.
template <bool WITH_Q>
DEVICE void decay_16(int lane, Diagonals& d, Four& q, Four& k, Four& all, const float4 (&gates)[2],
                     const uint4 (&q_words)[2], const uint4 (&k_words)[2], int step) {
  if constexpr (WITH_Q) {
    unsigned queries[4], keys[4];
    if constexpr (FEATURE_IS_IDENTITY) {
      UNROLL for (int r = 0; r < 2; ++r) {
        queries[r] = step ? q_words[r].z : q_words[r].x, queries[2 + r] = step ? q_words[r].w : q_words[r].y;
        keys[r] = step ? k_words[r].z : k_words[r].x, keys[2 + r] = step ? k_words[r].w : k_words[r].y;
      }
    } else {
      pack_four(queries, q);
      pack_four(keys, k);
    }
    multiply_diagonal(d.same, queries, keys);
  }
  UNROLL for (int r = 0; r < 2; ++r) {
    const float4& gate = gates[r];
    const float x[4] = {gate.x, gate.y, gate.z, gate.w};
    UNROLL for (int c = 0; c < 4; ++c) {
      all[r][c] = exp2_approx(x[c] * log2_e);
      q[r][c] = WITH_Q ? q[r][c] * all[r][c] : 0;
    }
  }
  join<WITH_Q, 4>(lane, d.pairs, q, k, all);
  join<WITH_Q, 8>(lane, d.fours, q, k, all);
  join<WITH_Q, 16>(lane, d.eights, q, k, all);
  if constexpr (WITH_Q) {
    unsigned words[4] = {};
    UNROLL for (int r = 0; r < 2; ++r) {
      const float(&x)[4] = r == 0 ? k[0] : q[1];
      words[r] = pack<IN_TYPE>(x[0], x[1]);
      words[2 + r] = pack<IN_TYPE>(x[2], x[3]);
    }
    multiply_eight(d.sixteens, words[0], words[1], words[0]);
    multiply_eight(d.sixteens, words[2], words[3], words[2]);
  }
  UNROLL for (int c = 0; c < 4; ++c) {
    if (WITH_Q) q[1][c] *= all[0][c];
    k[0][c] *= all[1][c];
  }
}

/// Of 16 x 16 pairs: the first rows with the first keys, the last rows with the first keys, the last with the last.
using Diagonal = float[3][2];
DEVICE void take_diagonal(Diagonal& diagonal, const Diagonals& d, int lane) {
  UNROLL for (int i = 0; i < 2; ++i) {
    const int key = lane % 4 * 2 + i, query = lane / 4, apart = query ^ key;  // of 8
    UNROLL for (int n = 0; n < 2; ++n) {
      const int at = 2 * n + i;
      const float score = apart == 0   ? d.same[n][at]
                          : apart == 1 ? d.pairs[n][at]
                          : apart < 4  ? d.fours[n][at]
                                       : d.eights[n][at];
      diagonal[2 * n][i] = key <= query ? score : 0.0f;
    }
    diagonal[1][i] = d.sixteens[2 + i];
  }
}

/// Returns by `weights` the weights of quarter `quarter` of a chunk, an operand A; weights[4 * n]: the products with
/// the tokens of quarter n. of_32 and of_64 are the scores of blocks of 32 and 64 tokens. Adds the weights of each of
/// the lane's rows to `sums`.
DEVICE void join_weights(unsigned (&weights)[16], float (&sums)[2], int quarter, const Diagonal& diagonal,
                         const float (&of_32)[1][2][4], const float (&of_64)[2][2][4]) {
  UNROLL for (int n = 0; n < 4; ++n) {
    UNROLL for (int i = 0; i < 4; ++i) {  // 8 columns i / 2, rows i % 2
      float x[2];
      UNROLL for (int c = 0; c < 2; ++c) {
        const int at = i % 2 * 2 + c;
        const float at_diagonal = i == 2 ? 0.0f : diagonal[i == 3 ? 2 : i][c];
        float y = 0;
        if (n < 2 && quarter >= 2) y = of_64[n % 2][i / 2][at];
        if (n % 2 == 0 && quarter == n + 1) y = of_32[0][i / 2][at];
        if (quarter == n) y = at_diagonal;
        x[c] = y;
        if (NORMALISED) sums[i % 2] += y;
      }
      weights[4 * n + i] = pack<IN_TYPE>(x[0], x[1]);
    }
  }
}

}  // namespace
