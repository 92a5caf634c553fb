// The recurrence, for one or a few tokens of each sequence: linear.h has the contract. The kernel reads and writes the
// state once, 16 bytes at a time; these accesses take most of the kernel's time. A thread loads its whole part of the
// state first.
//
// A threadgroup has a slice of CudaRecurrentLayout::columns columns of a head's state, with all rows, so that even a
// few sequences fill a GPU. A thread has four columns of every 16th row in registers. q, k, v and decays of token_block
// tokens at a time lie in threadgroup memory. o is summed over the rows of a warp, then over warps. Every threadgroup
// computes z; only the one with the first slice of a head writes z.
//
// The final state may overwrite the initial state. The final key sum may overwrite the initial key sum only if a head
// has one slice.
//
// Function constants: HEAD_DIM, VALUE_DIM (multiples of 8, at most 256), GATE, NORMALISED, IN_TYPE, OUT_TYPE.
// Grid: (sequences * CudaRecurrentLayout::slices, heads); 128 threads; CudaRecurrentLayout's threadgroup memory.
//
// Checked: recurrent[GATE=0,HEAD_DIM=64,IN_TYPE=2,NORMALISED=0,OUT_TYPE=2,VALUE_DIM=64] without spills
// Checked: recurrent[GATE=2,HEAD_DIM=128,IN_TYPE=2,NORMALISED=0,OUT_TYPE=2,VALUE_DIM=128] without spills
// Checked: recurrent[GATE=3,HEAD_DIM=256,IN_TYPE=1,NORMALISED=1,OUT_TYPE=0,VALUE_DIM=256] without spills
// Checked: recurrent[GATE=1,HEAD_DIM=72,IN_TYPE=0,NORMALISED=1,OUT_TYPE=0,VALUE_DIM=40] without spills
#include "common/kernel/base2.h"
#include "common/kernel/cuda.h"
#include "common/linear/kernels/feature.h"
#include "common/linear/kernels/phases_layout.h"

namespace {

constexpr CudaRecurrentLayout layout(HEAD_DIM, VALUE_DIM, GATE);
constexpr int THREADS = layout.threads, SLICE = layout.columns, TOKENS = layout.token_block, ROWS = layout.rows;
constexpr int DIMS = ROWS * 16;                           // HEAD_DIM, rounded up; q and k are zero in further rows
constexpr int SUMS = (HEAD_DIM + THREADS - 1) / THREADS;  // rows of z of a thread
constexpr int WARPS = THREADS / WARP;

extern __shared__ __align__(16) unsigned char memory[];

struct Recurrent {
  const LinearParams& p;
  const int head = blockIdx.y, sequence = blockIdx.x / layout.slices, slice = blockIdx.x % layout.slices;
  const SequenceRows rows = rows_of_sequence(p, sequence, 1);
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const int first_row = threadIdx.x / 8;                                            // and every 16th row after it
  const int own_column = threadIdx.x % 8 * 4, column = slice * SLICE + own_column;  // in the slice, and in the state
  const long long state_row = state_index(sequence, p.heads, head) * HEAD_DIM;

  float s[ROWS][4];
  float z[SUMS];

  DEVICE explicit Recurrent(const LinearParams& params) : p(params) {}

  DEVICE static float* part(long long place) { return reinterpret_cast<float*>(memory + place); }
  DEVICE bool has(int i) const { return column < VALUE_DIM && first_row + i * 16 < HEAD_DIM; }

  DEVICE void read() {
    UNROLL for (int i = 0; i < ROWS; ++i) {
      float4 words = make_float4(0, 0, 0, 0);
      if (p.initial_state != nullptr && has(i)) {
        words = __ldcs(
            reinterpret_cast<const float4*>(p.initial_state + (state_row + first_row + i * 16) * VALUE_DIM + column));
      }
      s[i][0] = words.x;
      s[i][1] = words.y;
      s[i][2] = words.z;
      s[i][3] = words.w;
    }
    if constexpr (NORMALISED) {
      UNROLL for (int i = 0; i < SUMS; ++i) {
        const int d = threadIdx.x + i * THREADS;
        z[i] = p.initial_key_sum != nullptr && d < HEAD_DIM ? p.initial_key_sum[state_row + d] : 0.0f;
      }
    }
  }

  DEVICE void write() const {
    UNROLL for (int i = 0; i < ROWS; ++i) {
      if (p.final_state == nullptr || !has(i)) continue;
      __stcs(reinterpret_cast<float4*>(p.final_state + (state_row + first_row + i * 16) * VALUE_DIM + column),
             make_float4(s[i][0], s[i][1], s[i][2], s[i][3]));
    }
    if constexpr (NORMALISED) {
      UNROLL for (int i = 0; i < SUMS; ++i) {
        const int d = threadIdx.x + i * THREADS;
        if (slice == 0 && p.final_key_sum != nullptr && d < HEAD_DIM) p.final_key_sum[state_row + d] = z[i];
      }
    }
  }

  DEVICE long long at(const TensorStrides& strides, int row) const {
    return rows.batch * strides.batch + head * strides.head + (rows.first + static_cast<long long>(row)) * strides.row;
  }

  // Stages tokens from `begin` on as floats: q and k after the feature map, decays as factors. A barrier stands after
  // each call, and before each call except the first.
  DEVICE void stage(int begin, int count) {
    for (int i = threadIdx.x; i < count * DIMS; i += THREADS) {
      const int t = i / DIMS, d = i % DIMS;
      const bool there = d < HEAD_DIM;
      float q = 0, k = 0;
      if (there) {
        q = feature(load_float<IN_TYPE>(p.q, at(p.q_strides, begin + t) + d), p.feature_data);
        k = feature(load_float<IN_TYPE>(p.k, at(p.k_strides, begin + t) + d), p.feature_data);
      }
      part(layout.q)[i] = q;
      part(layout.k)[i] = k;
      if constexpr (GATE == GATE_CHANNEL) {
        part(layout.decays)[i] = there ? exp2_approx(p.gate[at(p.gate_strides, begin + t) + d] * log2_e) : 0.0f;
      }
    }
    for (int i = threadIdx.x; i < count * SLICE; i += THREADS) {
      const int t = i / SLICE, e = slice * SLICE + i % SLICE;
      part(layout.v)[i] = e < VALUE_DIM ? load_float<IN_TYPE>(p.v, at(p.v_strides, begin + t) + e) : 0.0f;
    }
    if constexpr (GATE == GATE_HEAD || GATE == GATE_TOKEN) {
      for (int t = threadIdx.x; t < count; t += THREADS) {
        const float gate = GATE == GATE_HEAD ? p.gate[head] : p.gate[at(p.gate_strides, begin + t)];
        part(layout.decays)[t] = exp2_approx(gate * log2_e);
      }
    }
  }

  // The state takes up a token. Each warp writes to `parts` what its rows add to o, summed.
  DEVICE void step(int t) {
    const float* const q = part(layout.q) + t * DIMS;
    const float* const k = part(layout.k) + t * DIMS;
    const float* const decays = part(layout.decays) + (GATE == GATE_CHANNEL ? t * DIMS : t);
    const float4 v = *reinterpret_cast<const float4*>(part(layout.v) + t * SLICE + own_column);
    float o[4] = {};
    UNROLL for (int i = 0; i < ROWS; ++i) {
      const int d = first_row + i * 16;
      if (ROWS * 16 != HEAD_DIM && d >= HEAD_DIM) continue;  // 0 times an infinite value would be NaN
      const float decay = GATE == GATE_NONE ? 1.0f : decays[GATE == GATE_CHANNEL ? d : 0];
      const float of_k = k[d], of_q = q[d];
      s[i][0] = s[i][0] * decay + of_k * v.x;
      s[i][1] = s[i][1] * decay + of_k * v.y;
      s[i][2] = s[i][2] * decay + of_k * v.z;
      s[i][3] = s[i][3] * decay + of_k * v.w;
      UNROLL for (int j = 0; j < 4; ++j) o[j] += of_q * s[i][j];
    }
    UNROLL for (int j = 0; j < 4; ++j) {
      o[j] += __shfl_xor_sync(~0u, o[j], 8);
      o[j] += __shfl_xor_sync(~0u, o[j], 16);
    }
    if (lane < 8) {
      *reinterpret_cast<float4*>(part(layout.parts) + (t * WARPS + warp) * SLICE + own_column) =
          make_float4(o[0], o[1], o[2], o[3]);
    }
    if constexpr (NORMALISED) {
      float sum = 0;
      UNROLL for (int i = 0; i < SUMS; ++i) {
        const int d = threadIdx.x + i * THREADS;
        if (d >= HEAD_DIM) continue;
        const float decay = GATE == GATE_NONE ? 1.0f : decays[GATE == GATE_CHANNEL ? d : 0];
        z[i] = z[i] * decay + k[d];
        sum += q[d] * z[i];
      }
      UNROLL for (int other = 1; other < WARP; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
      if (lane == 0) part(layout.sums)[t * WARPS + warp] = sum;
    }
  }

  // A barrier stands before each call, and between a call and the next stage().
  DEVICE void write_outputs(int begin, int count) const {
    for (int i = threadIdx.x; i < count * SLICE; i += THREADS) {
      const int t = i / SLICE, e = slice * SLICE + i % SLICE;
      if (e >= VALUE_DIM) continue;
      float o = 0, factor = p.scale;
      UNROLL for (int w = 0; w < WARPS; ++w) o += part(layout.parts)[(t * WARPS + w) * SLICE + i % SLICE];
      if constexpr (NORMALISED) {
        float sum = 0;
        UNROLL for (int w = 0; w < WARPS; ++w) sum += part(layout.sums)[t * WARPS + w];
        factor = sum != 0 ? 1 / sum : 0;
      }
      store_float<OUT_TYPE>(p.o, at(p.o_strides, begin + t) + e, o * factor);
    }
  }

  DEVICE void run() {
    read();
#pragma unroll 1
    for (int begin = 0; begin < rows.rows; begin += TOKENS) {
      const int count = min(TOKENS, rows.rows - begin);
      if (begin > 0) __syncthreads();
      stage(begin, count);
      __syncthreads();
#pragma unroll 1
      for (int t = 0; t < count; ++t) step(t);
      __syncthreads();
      write_outputs(begin, count);
    }
    write();
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, ROWS <= 8 ? 5 : 4)
    recurrent(const __grid_constant__ LinearParams p) {
  Recurrent(p).run();
}
