// The weights of `fused` with a gate by channel.
//
// The decay from token j to token i, j < i, differs from channel to channel, so Q K^T is no product of matrices. The
// kernel cuts a chunk into halves, quarters and so on, to pairs of tokens. Two tokens i and j < i lie in the two halves
// of just one block. With the border between these halves as reference the decay is a product of two numbers of at most
// 1: the decay from the border to i, by which q_i is multiplied, and the decay from j to the border, by which k_j is
// multiplied. So each size of blocks is a product of matrices, of which only the pairs in two halves of one block
// count. Nothing overflows, and no decay is divided by another. If a decay is 0 (a gate of -infinity), so is what it
// multiplies.
//
// Two warpgroups share a chunk. Each has 32 of the 64 channels of each panel, and each of its warps a quarter of the
// tokens. A thread holds two tokens, `row` and `row` + 8, of four channels at a time. It computes each decay by one
// exponential. Blocks of 16 tokens and less are products of a warp (mma.sync): the same registers are both operands,
// because a token of the later half is a query, and a token of the earlier half is a key. For blocks of 32 and 64
// tokens the warps exchange operands through the memory of the gates. For the products with S and V the warps replace Q
// by Q times the decays since the chunk's start, and K by K times the decays to its end.
#pragma once

#include "common/kernel/ampere.h"
#include "common/linear/kernels/fused/epilogue.h"

namespace {

struct ChannelScores : Epilogue {
  using Epilogue::Epilogue;

  const int group = index - 1;                                           // of the two warpgroups
  const int quarter = BY_CHANNEL ? uniform(threadIdx.x / WARP) % 4 : 0;  // of the chunk's tokens
  const int eighth = lane / 4, in_quad = lane % 4;                       // row % 8, and which channels
  unsigned turn = 0;                                                     // chunks until now

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
  DEVICE static void pack_four(unsigned (&to)[4], const Four& x) {
    UNROLL for (int r = 0; r < 2; ++r) {
      to[r] = pack<IN_TYPE>(x[r][0], x[r][1]);
      to[2 + r] = pack<IN_TYPE>(x[r][2], x[r][3]);
    }
  }
  // D[16 x 8] += A[16 x 8] B[8 x 8]. A row of D depends only on the same row of A, also if other rows are NaN.
  DEVICE static void multiply_eight(float (&d)[4], unsigned a0, unsigned a1, unsigned b) {
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
  DEVICE static void multiply_diagonal(Pair& score, const unsigned (&queries)[4], const unsigned (&keys)[4]) {
    UNROLL for (int i = 0; i < 4; ++i) {
      multiply_eight(score[i % 2], queries[i / 2 * 2], queries[i / 2 * 2 + 1], keys[i]);
    }
  }

  // Multiplies the first number by a factor if `first`, else the second.
  DEVICE static void multiply_one(bool first, float& a, float& b, float by) {
    asm("{.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n@p mul.ftz.f32 %0, %0, %2;\n@!p mul.ftz.f32 %1, %1, %2;}"
        : "+f"(a), "+f"(b)
        : "f"(by), "r"(static_cast<int>(first)));
  }

  // Adds the scores of blocks of two halves, which lie STEP lanes apart, and joins the halves. q has the decays since
  // the start of its half, k those to the end of its half, and `all` is the decay over the half.
  template <bool WITH_Q, int STEP>
  DEVICE void join(Pair& score, Four& q, Four& k, Four& all) const {
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

  // Returns four floats of a row of the table of decays.
  DEVICE static float4 table(int row, int channel) {
    return *reinterpret_cast<const float4*>(decays_of(row) + channel);
  }
  DEVICE static void scale_four(Four& x, float4 by) {
    UNROLL for (int r = 0; r < 2; ++r) x[r][0] *= by.x, x[r][1] *= by.y, x[r][2] *= by.z, x[r][3] *= by.w;
  }

  // Returns the address of the gates of token `row` of quarter `of`, for step 0 or 1 of this thread's channels. When
  // the gates have been read, the operands for blocks of 32 tokens lie there; those for blocks of 64 lie in row + 8.
  DEVICE unsigned char* gates(unsigned char* stage, int panel, int of_group, int of, int step) const {
    return stage + layout.gates + (2 * panel + of_group) * PANEL_BYTES + (of * 16 + eighth) * PANEL_ROW_BYTES +
           (2 * in_quad + step ^ eighth) * 16;
  }

  // Reads f(x) of a step's channels from two tokens' eight channels. What is not there becomes 0; if f is the identity,
  // it is 0 already.
  DEVICE void take(Four& to, const uint4 (&from)[2], int step, const bool (&there)[2]) const {
    UNROLL for (int r = 0; r < 2; ++r) {
      const float2 low = floats_of_pair(step ? from[r].z : from[r].x),
                   high = floats_of_pair(step ? from[r].w : from[r].y);
      const float x[4] = {low.x, low.y, high.x, high.y};
      UNROLL for (int c = 0; c < 4; ++c) {
        to[r][c] = FEATURE_IS_IDENTITY || there[r] ? feature(x[c], p.linear.feature_data) : 0.0f;
      }
    }
  }

  // Multiplies q and k of one step, which have the decays within the quarter, by the other decays of the chunk, and
  // stores them. `inner` is q in the late half of the chunk and k in the early half: what meets the other half in a
  // block of 64 tokens. `outer` is the other of the two.
  DEVICE void store_step(unsigned char* stage, int panel, int step, Four& inner, Four& outer, unsigned char* inner_to,
                         unsigned char* outer_to) const {
    const int channel = panel * 64 + group * 32 + in_quad * 8 + step * 4;
    const float4 near = table(QUARTER + (quarter ^ 1), channel);
    unsigned char* const to = gates(stage, panel, group, quarter, step);
    unsigned words[4];
    // What meets the other quarter in a block of 32 tokens has to cross this quarter before it meets the other half.
    if (quarter == 0 || quarter == 3) {
      pack_four(words, inner);
      scale_four(inner, near);
    } else {
      pack_four(words, outer);
      scale_four(outer, near);
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    pack_four(words, inner);
    *reinterpret_cast<uint4*>(to + 8 * PANEL_ROW_BYTES) = make_uint4(words[0], words[1], words[2], words[3]);
    scale_four(inner, table(quarter < 2 ? SECOND_HALF : FIRST_HALF, channel));
    store_four(inner_to, panel, step, inner);
    store_four(outer_to, panel, step, outer);
  }
  // Stores a step of two tokens in the order of positions.
  DEVICE void store_four(unsigned char* panels, int panel, int step, const Four& x) const {
    unsigned words[4];
    pack_four(words, x);
    store_matrices(matrix_address(panels + panel * PANEL_BYTES) ^ (2 * group + step) * 32, words[0], words[1], words[2],
                   words[3]);
  }

  // Replaces K by K times its decays to the chunk's end. WITH_Q: also replaces Q by Q times its decays since the
  // chunk's start, leaves the operands of blocks of 32 and 64 tokens in the memory of the gates, and computes the
  // scores of the warp's 16 tokens. A chunk has `rows` tokens.
  template <bool WITH_Q>
  DEVICE void decay_chunk(unsigned char* stage, int rows, Diagonals& d) const {
    const bool there[2] = {row < rows, row + 8 < rows};
#pragma unroll 1
    for (int panel = 0; panel < PANELS; ++panel) {
      uint4 q_words[2], k_words[2];
      float4 gate_words[2][2];
      UNROLL for (int r = 0; r < 2; ++r) {
        const int at = panel * PANEL_BYTES + (row + r * 8) * PANEL_ROW_BYTES + (4 * group + in_quad ^ eighth) * 16;
        if (WITH_Q) q_words[r] = *reinterpret_cast<const uint4*>(stage + at);
        k_words[r] = *reinterpret_cast<const uint4*>(stage + layout.k + at);
        UNROLL for (int step = 0; step < 2; ++step) {
          gate_words[step][r] =
              *reinterpret_cast<const float4*>(gates(stage, panel, group, quarter, step) + r * 8 * PANEL_ROW_BYTES);
        }
      }
      if (rows < CHUNK) {
        UNROLL for (int r = 0; r < 2; ++r) {
          if (there[r]) continue;
          k_words[r] = make_uint4(0, 0, 0, 0);
          gate_words[0][r] = gate_words[1][r] = make_float4(0, 0, 0, 0);
        }
      }
      __syncwarp();
      UNROLL for (int step = 0; step < 2; ++step) {
        Four q, k, all;
        const bool inside = HEAD_DIM % 64 == 0 || panel * 64 + group * 32 + in_quad * 8 < HEAD_DIM;
        if (WITH_Q) take(q, q_words, step, {inside, inside});
        take(k, k_words, step, {there[0] && inside, there[1] && inside});
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
          const float4& gate = gate_words[step][r];
          const float x[4] = {gate.x, gate.y, gate.z, gate.w};
          UNROLL for (int c = 0; c < 4; ++c) {
            all[r][c] = exp2_approx(x[c] * log2_e);
            q[r][c] = WITH_Q ? q[r][c] * all[r][c] : 0;
          }
        }
        join<WITH_Q, 4>(d.pairs, q, k, all);
        join<WITH_Q, 8>(d.fours, q, k, all);
        join<WITH_Q, 16>(d.eights, q, k, all);
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
        if constexpr (!WITH_Q) {
          const int channel = panel * 64 + group * 32 + in_quad * 8 + step * 4;
          if (quarter % 2 == 0) scale_four(k, table(QUARTER + quarter + 1, channel));
          if (quarter < 2) scale_four(k, table(SECOND_HALF, channel));
          store_four(stage + layout.k, panel, step, k);
        } else if (quarter < 2) {
          store_step(stage, panel, step, k, q, stage + layout.k, stage);
        } else {
          store_step(stage, panel, step, q, k, stage, stage + layout.k);
        }
      }
    }
  }

  // Adds the products of one kind of operand, for blocks of 32 (`half` is 0) or 64 tokens: the warp's tokens times the
  // tokens of quarter `of`.
  template <int N>
  DEVICE void multiply_quarters(float (&score)[N][2][4], unsigned char* stage, int half, int of) const {
#pragma unroll 1
    for (int box = 0; box < 2 * PANELS; ++box) {
      UNROLL for (int step = 0; step < 2; ++step) {
        const auto words = [&](int of_quarter) {
          return *reinterpret_cast<const uint4*>(gates(stage, box / 2, box % 2, of_quarter, step) +
                                                 half * 8 * PANEL_ROW_BYTES);
        };
        const uint4 a = words(quarter);
        const unsigned queries[4] = {a.x, a.y, a.z, a.w};
        UNROLL for (int n = 0; n < N; ++n) {
          const uint4 b = words(of + n);
          multiply_add<IN_TYPE>(score[n][0], queries, b.x, b.z);
          multiply_add<IN_TYPE>(score[n][1], queries, b.y, b.w);
        }
      }
    }
  }

  // Waits for the decays of a chunk, and decays its keys, before the chunk's state.
  DEVICE void decay_keys(const Task& task, int chunk, const Ring<STAGES>& ring) {
    Diagonals none;
    barriers().full[ring.index].wait(ring.parity);
    __syncwarp();
    named_sync(decays_barrier, 3 * WARPGROUP);
    decay_chunk<false>(stage_of(ring), task.tokens - chunk * CHUNK, none);
    fence_stores();
    __syncwarp();
    named_arrive(keys_barrier, 3 * WARPGROUP);
  }

  // Does what decay_keys() does, and computes this thread's weights, the operand A of the product with V. Adds the
  // weights of each of the thread's rows to `sums`. Returns false if this warpgroup has no outputs.
  DEVICE bool weigh_by_channel(const Task& task, int chunk, const Ring<STAGES>& ring, unsigned (&weights)[16],
                               float (&sums)[2]) {
    unsigned char* const stage = stage_of(ring);
    Diagonals d{};
    barriers().full[ring.index].wait(ring.parity);
    __syncwarp();
    named_sync(decays_barrier, 3 * WARPGROUP);
    decay_chunk<true>(stage, task.tokens - chunk * CHUNK, d);
    // Of 16 x 16 pairs: the first rows with the first keys, the last rows with the first keys, the last with the last.
    float diagonal[3][2];
    UNROLL for (int i = 0; i < 2; ++i) {
      const int key = column + i, apart = eighth ^ key;  // of 8
      UNROLL for (int n = 0; n < 2; ++n) {
        const int at = 2 * n + i;
        const float score = apart == 0   ? d.same[n][at]
                            : apart == 1 ? d.pairs[n][at]
                            : apart < 4  ? d.fours[n][at]
                                         : d.eights[n][at];
        diagonal[2 * n][i] = key <= eighth ? score : 0.0f;
      }
      diagonal[1][i] = d.sixteens[2 + i];
    }
    float* const own = diagonals(turn, group) + thread;
    const float* const others = diagonals(turn, 1 - group) + thread;
    ++turn;
    UNROLL for (int i = 0; i < 6; ++i) own[i * WARPGROUP] = diagonal[i / 2][i % 2];
    fence_stores();
    __syncwarp();
    named_arrive(keys_barrier, 3 * WARPGROUP);
    named_sync(both_barrier, 2 * WARPGROUP);
    if (COLUMN_PANELS == 1 && group == 1) return false;
    UNROLL for (int i = 0; i < 6; ++i) diagonal[i / 2][i % 2] += others[i * WARPGROUP];

    float of_32[1][2][4] = {}, of_64[2][2][4] = {};
    if (quarter % 2 == 1) multiply_quarters<1>(of_32, stage, 0, quarter - 1);
    if (quarter >= 2) multiply_quarters<2>(of_64, stage, 1, 0);
    // weights[4 * n]: the products with the tokens of quarter n.
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
    return true;
  }
};

}  // namespace
