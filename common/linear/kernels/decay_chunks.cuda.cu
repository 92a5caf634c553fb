// The first launch of linear attention's fused form on Hopper, if the gate is by channel and HEAD_DIM is above 64. It
// computes for each chunk of 64 tokens what `fused` takes in place of Q, K and the gates: Q times the decays since the
// chunk's start, K times the decays to the chunk's end, the weights, and the chunk's decays. fused/scores.h gives the
// method. So the slices of value columns share this work, and it runs at once for all chunks.
//
// A threadgroup computes one chunk of one head. Each of its four warps has 16 tokens, and goes over the channels, 32 at
// a time.
//
// Function constants: HEAD_DIM (multiple of 8, at most 256), NORMALISED, IN_TYPE. Grid: FusedParams::chunks * heads;
// 128 threads; DecayChunksLayout's threadgroup memory.
//
// Checked: decay_chunks[HEAD_DIM=128,IN_TYPE=2,NORMALISED=0] without spills
// Checked: decay_chunks[HEAD_DIM=256,IN_TYPE=1,NORMALISED=1] without spills
#include "common/kernel/ampere.h"
#include "common/linear/kernels/feature.h"
#include "common/linear/kernels/fused.h"
#include "common/linear/kernels/fused/blocks.h"

namespace {

struct ChunkDecays {
  static constexpr int halves = (HEAD_DIM + 63) / 64 * 2;  // of panels: 32 channels
  static constexpr DecayChunksLayout places = DecayChunksLayout(HEAD_DIM);

  const FusedParams& p;
  unsigned char* const shared;
  const int head = static_cast<int>(blockIdx.x % p.linear.heads),
            number = static_cast<int>(blockIdx.x / p.linear.heads);
  const ChunkPlace place = place_of_chunk(p.linear, number, fused_chunk);
  const int quarter = threadIdx.x / WARP, lane = threadIdx.x % WARP, in_quad = lane % 4;
  const int row = quarter * 16 + lane / 4;

  DEVICE const void* from(const void* tensor, const TensorStrides& strides, int r, int channel, int bytes) const {
    return static_cast<const char*>(tensor) + bytes * (place.batch * strides.batch + head * strides.head +
                                                       (place.first + row + r * 8) * strides.row + channel);
  }
  // Returns the index of a row of this chunk in a tensor [heads, 64 * chunks].
  DEVICE long long out_row(int of_chunk) const {
    return (static_cast<long long>(head) * p.chunks + number) * fused_chunk + of_chunk;
  }
  // The table of decays of the quarters: [4][32 * halves].
  DEVICE float* decay_of(int of_quarter, int channel) const {
    return reinterpret_cast<float*>(shared + places.decays) + of_quarter * (32 * halves) + channel;
  }
  DEVICE float4 four_decays(int of_quarter, int channel) const {
    return *reinterpret_cast<const float4*>(decay_of(of_quarter, channel));
  }
  // The operand of 16 tokens and 16 channels, for blocks of 32 tokens (`kind` is 0) or of 64 tokens.
  DEVICE uint4& operand_of(int kind, int step, int of_quarter) const {
    return reinterpret_cast<uint4*>(shared)[((step * 2 + kind) * 4 + of_quarter) * WARP + lane];
  }
  DEVICE static uint4 words_of(const unsigned (&x)[4]) { return make_uint4(x[0], x[1], x[2], x[3]); }

  // Multiplies q and k of one step by the decays of the other quarters, and stores operands. `inner` and `outer` are
  // those of scores.h. Returns both, packed.
  DEVICE void cross(int step, int channel, Four& inner, Four& outer, unsigned (&inner_words)[4],
                    unsigned (&outer_words)[4]) const {
    const float4 near = four_decays(quarter ^ 1, channel);
    const bool first = quarter == 0 || quarter == 3;
    unsigned words[4];
    if (first) {
      pack_four(words, inner);
      scale_four(inner, near);
    } else {
      pack_four(words, outer);
      scale_four(outer, near);
    }
    operand_of(0, step, quarter) = words_of(words);
    pack_four(words, inner);
    operand_of(1, step, quarter) = words_of(words);
    scale_four(inner, four_decays(quarter < 2 ? 2 : 0, channel));
    scale_four(inner, four_decays(quarter < 2 ? 3 : 1, channel));
    pack_four(inner_words, inner);
    pack_four(outer_words, outer);
  }

  // Stores eight channels of two tokens: words[step] are packed.
  DEVICE void store(void* to, const unsigned (&words)[2][4], int channel) const {
    UNROLL for (int r = 0; r < 2; ++r) {
      reinterpret_cast<uint4*>(to)[(out_row(row + r * 8) * HEAD_DIM + channel) / 8] =
          make_uint4(words[0][r], words[0][2 + r], words[1][r], words[1][2 + r]);
    }
  }

  // Computes 32 channels.
  DEVICE void compute(int half, Diagonals& d) const {
    const int channel = half * 32 + in_quad * 8;
    const bool inside = HEAD_DIM % 64 == 0 || channel < HEAD_DIM;
    const bool there[2] = {inside && row < place.rows, inside && row + 8 < place.rows};
    uint4 q_words[2], k_words[2];
    float4 gates[2][2];
    UNROLL for (int r = 0; r < 2; ++r) {
      q_words[r] = k_words[r] = make_uint4(0, 0, 0, 0);
      gates[0][r] = gates[1][r] = make_float4(0, 0, 0, 0);
      if (!there[r]) continue;
      q_words[r] = *static_cast<const uint4*>(from(p.linear.q, p.linear.q_strides, r, channel, 2));
      k_words[r] = *static_cast<const uint4*>(from(p.linear.k, p.linear.k_strides, r, channel, 2));
      const auto* const gate = static_cast<const float4*>(from(p.linear.gate, p.linear.gate_strides, r, channel, 4));
      gates[0][r] = gate[0], gates[1][r] = gate[1];
    }
    Four q[2], k[2];
    UNROLL for (int step = 0; step < 2; ++step) {
      Four all;
      take(q[step], q_words, step, there, p.linear.feature_data);
      take(k[step], k_words, step, there, p.linear.feature_data);
      decay_16<true>(lane, d, q[step], k[step], all, gates[step], q_words, k_words, step);
      if (lane < 4) {
        *reinterpret_cast<float4*>(decay_of(quarter, channel + step * 4)) =
            make_float4(all[0][0] * all[1][0], all[0][1] * all[1][1], all[0][2] * all[1][2], all[0][3] * all[1][3]);
      }
    }
    __syncthreads();
    unsigned q_out[2][4], k_out[2][4];
    UNROLL for (int step = 0; step < 2; ++step) {
      const int at = channel + step * 4;
      if (quarter < 2) {
        cross(half * 2 + step, at, k[step], q[step], k_out[step], q_out[step]);
      } else {
        cross(half * 2 + step, at, q[step], k[step], q_out[step], k_out[step]);
      }
    }
    if (inside) {
      store(p.decayed_q, q_out, channel);
      store(p.decayed_k, k_out, channel);
    }
  }

  // Adds the products for blocks of 32 tokens (`kind` is 0) or 64 tokens: the warp's tokens times the tokens of quarter
  // `of`.
  template <int N>
  DEVICE void multiply_quarters(float (&score)[N][2][4], int kind, int of) const {
#pragma unroll 2
    for (int step = 0; step < 2 * halves; ++step) {
      const uint4 a = operand_of(kind, step, quarter);
      const unsigned queries[4] = {a.x, a.y, a.z, a.w};
      UNROLL for (int n = 0; n < N; ++n) {
        const uint4 b = operand_of(kind, step, of + n);
        multiply_add<IN_TYPE>(score[n][0], queries, b.x, b.z);
        multiply_add<IN_TYPE>(score[n][1], queries, b.y, b.w);
      }
    }
  }

  DEVICE void run() const {
    if (place.rows == 0) return;
    Diagonals d{};
#pragma unroll 1
    for (int half = 0; half < halves; ++half) compute(half, d);
    Diagonal diagonal;
    take_diagonal(diagonal, d, lane);
    __syncthreads();
    float* const decays =
        p.chunk_decays + (static_cast<long long>(head) * p.chunks + number) * fused_decay_floats(HEAD_DIM);
    for (int i = threadIdx.x; i < 32 * halves; i += fused_chunk_threads) {
      decays[i] = (*decay_of(0, i) * *decay_of(1, i)) * (*decay_of(2, i) * *decay_of(3, i));
    }
    float of_32[1][2][4] = {}, of_64[2][2][4] = {}, sums[2] = {};
    if (quarter % 2 == 1) multiply_quarters<1>(of_32, 0, quarter - 1);
    if (quarter >= 2) multiply_quarters<2>(of_64, 1, 0);
    unsigned weights[16];
    join_weights(weights, sums, quarter, diagonal, of_32, of_64);
    UNROLL for (int r = 0; r < 2; ++r) {
      if constexpr (NORMALISED) {
        const float sum = sum_of_quad(sums[r]);
        if (in_quad == 0) decays[32 * halves + row + r * 8] = sum;
      }
      UNROLL for (int n = 0; n < 2; ++n) {  // 32 of the row's 64 weights
        unsigned words[4] = {weights[8 * n + r], weights[8 * n + 2 + r], weights[8 * n + 4 + r],
                             weights[8 * n + 6 + r]};
        transpose_quad(words);
        static_cast<uint4*>(p.weights)[(out_row(row + r * 8) * fused_chunk + n * 32) / 8 + in_quad] = words_of(words);
      }
    }
  }
};

extern __shared__ __align__(1024) unsigned char decay_memory[];

}  // namespace

extern "C" __global__ void __launch_bounds__(fused_chunk_threads, 4)
    decay_chunks(const __grid_constant__ FusedParams p) {
  ChunkDecays{p, decay_memory}.run();
}
