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
// In `fused`, whose heads here have at most 64 channels, two warpgroups share a chunk. Each has 32 channels, and each
// of its warps a quarter of the tokens. A thread holds two tokens, `row` and `row` + 8, of four channels at a time. It
// computes each decay by one exponential. Blocks of 16 tokens and less are products of a warp (mma.sync): the same
// registers are both operands, because a token of the later half is a query, and a token of the earlier half is a key.
// For blocks of 32 and 64 tokens the warps exchange operands through the memory of the gates. For the products with S
// and V the warps replace Q by Q times the decays since the chunk's start, and K by K times the decays to its end.
#pragma once

#include "common/linear/kernels/fused/epilogue.h"

namespace {

struct ChannelScores : Epilogue {
  using Epilogue::Epilogue;

  const int group = index - 1;                                           // of the two warpgroups
  const int quarter = BY_CHANNEL ? uniform(threadIdx.x / WARP) % 4 : 0;  // of the chunk's tokens
  const int eighth = lane / 4, in_quad = lane % 4;                       // row % 8, and which channels
  const int first_channel = group * 32 + in_quad * 8;                    // of the thread's eight
  unsigned turn = 0;                                                     // chunks until now

  // Returns four floats of a row of the table of decays.
  DEVICE static float4 table(int row, int channel) {
    return *reinterpret_cast<const float4*>(decays_of(row) + channel);
  }

  // Returns the address of the gates of token `row` of quarter `of`, for step 0 or 1 of this thread's channels. When
  // the gates have been read, the operands for blocks of 32 tokens lie there; those for blocks of 64 lie in row + 8.
  DEVICE unsigned char* gates(unsigned char* stage, int of_group, int of, int step) const {
    return stage + layout.gates + of_group * PANEL_BYTES + (of * 16 + eighth) * PANEL_ROW_BYTES +
           (2 * in_quad + step ^ eighth) * 16;
  }

  // Multiplies q and k of one step, which have the decays within the quarter, by the other decays of the chunk, and
  // stores them. `inner` is q in the late half of the chunk and k in the early half: what meets the other half in a
  // block of 64 tokens. `outer` is the other of the two.
  DEVICE void store_step(unsigned char* stage, int step, Four& inner, Four& outer, unsigned char* inner_to,
                         unsigned char* outer_to) const {
    const int channel = first_channel + step * 4;
    const float4 near = table(QUARTER + (quarter ^ 1), channel);
    unsigned char* const to = gates(stage, group, quarter, step);
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
    store_four(inner_to, step, inner);
    store_four(outer_to, step, outer);
  }
  // Stores a step of two tokens in the order of positions.
  DEVICE void store_four(unsigned char* panel, int step, const Four& x) const {
    unsigned words[4];
    pack_four(words, x);
    store_matrices(matrix_address(panel) ^ (2 * group + step) * 32, words[0], words[1], words[2], words[3]);
  }

  // Replaces K by K times its decays to the chunk's end. WITH_Q: also replaces Q by Q times its decays since the
  // chunk's start, leaves the operands of blocks of 32 and 64 tokens in the memory of the gates, and computes the
  // scores of the warp's 16 tokens. A chunk has `rows` tokens.
  template <bool WITH_Q>
  DEVICE void decay_chunk(unsigned char* stage, int rows, Diagonals& d) const {
    const bool there[2] = {row < rows, row + 8 < rows};
    uint4 q_words[2], k_words[2];
    float4 gate_words[2][2];
    UNROLL for (int r = 0; r < 2; ++r) {
      const int at = (row + r * 8) * PANEL_ROW_BYTES + (4 * group + in_quad ^ eighth) * 16;
      if (WITH_Q) q_words[r] = *reinterpret_cast<const uint4*>(stage + at);
      k_words[r] = *reinterpret_cast<const uint4*>(stage + layout.k + at);
      UNROLL for (int step = 0; step < 2; ++step) {
        gate_words[step][r] =
            *reinterpret_cast<const float4*>(gates(stage, group, quarter, step) + r * 8 * PANEL_ROW_BYTES);
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
      const bool inside = HEAD_DIM % 64 == 0 || first_channel < HEAD_DIM;
      if (WITH_Q) take(q, q_words, step, {inside, inside}, p.linear.feature_data);
      take(k, k_words, step, {there[0] && inside, there[1] && inside}, p.linear.feature_data);
      decay_16<WITH_Q>(lane, d, q, k, all, gate_words[step], q_words, k_words, step);
      if constexpr (!WITH_Q) {
        const int channel = first_channel + step * 4;
        if (quarter % 2 == 0) scale_four(k, table(QUARTER + quarter + 1, channel));
        if (quarter < 2) scale_four(k, table(SECOND_HALF, channel));
        store_four(stage + layout.k, step, k);
      } else if (quarter < 2) {
        store_step(stage, step, k, q, stage + layout.k, stage);
      } else {
        store_step(stage, step, q, k, stage, stage + layout.k);
      }
    }
  }

  // Adds the products of one kind of operand, for blocks of 32 (`half` is 0) or 64 tokens: the warp's tokens times the
  // tokens of quarter `of`.
  template <int N>
  DEVICE void multiply_quarters(float (&score)[N][2][4], unsigned char* stage, int half, int of) const {
#pragma unroll 1
    for (int of_group = 0; of_group < 2; ++of_group) {
      UNROLL for (int step = 0; step < 2; ++step) {
        const auto words = [&](int of_quarter) {
          return *reinterpret_cast<const uint4*>(gates(stage, of_group, of_quarter, step) + half * 8 * PANEL_ROW_BYTES);
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
    Diagonal diagonal;
    take_diagonal(diagonal, d, lane);
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
    join_weights(weights, sums, quarter, diagonal, of_32, of_64);
    return true;
  }
};

}  // namespace
