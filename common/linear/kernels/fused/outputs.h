// The outputs of `fused`: the products and decays of a chunk.
#pragma once

#include "common/linear/kernels/fused/scores.h"

namespace {

struct Outputs : ChannelScores {
  float s[32], o[32], divisor[4];
  unsigned weights[16];
  float row_decay[2];  // G of the thread's rows
  float row_sum[2];    // sums of the thread's weights in its rows

  DEVICE Outputs(const FusedParams& params, int number) : ChannelScores(params, number) {}

  // Multiplies Q K^T by mask and decays. The result is the operand A of the next product.
  DEVICE void weigh() {
    if constexpr (GATED) {
      const float* const from = sums();
      UNROLL for (int r = 0; r < 2; ++r) row_decay[r] = from[row + 8 * r];
    }
    UNROLL for (int j = 0; j < 8; ++j) {
      float x[4];
      [[maybe_unused]] float2 sum;
      if constexpr (GATED) sum = *reinterpret_cast<const float2*>(sums() + 8 * j + column);
      UNROLL for (int i = 0; i < 4; ++i) {
        const int token = 8 * j + column + i % 2;
        float weight = s[4 * j + i];
        // This factor may be infinite, but only for pairs that the mask hides.
        if constexpr (GATED) weight *= exp2_approx(row_decay[i / 2] - (i % 2 ? sum.y : sum.x));
        x[i] = token <= row + i / 2 * 8 ? weight : 0.0f;
        if constexpr (NORMALISED) row_sum[i / 2] += x[i];
      }
      weights[2 * j] = pack<IN_TYPE>(x[0], x[1]);
      weights[2 * j + 1] = pack<IN_TYPE>(x[2], x[3]);
    }
  }

  // If PREPARED: loads the sums of the weights of the chunk's rows; one thread of each quad has a row's sum.
  DEVICE void read_sums(const Task& task, int chunk) {
    const float* const from =
        p.chunk_decays +
        (static_cast<long long>(task.head) * p.chunks + task.number + chunk) * fused_decay_floats(HEAD_DIM) +
        PANELS * 64;
    UNROLL for (int r = 0; r < 2; ++r) row_sum[r] = column == 0 ? from[row + r * 8] : 0;
  }

  DEVICE void compute_chunk(const Task& task, int chunk, const Ring<STAGES>& ring) {
    Barriers& bars = barriers();
    bars.full[ring.index].wait(ring.parity);
    unsigned char* const stage = stage_of(ring);
    const unsigned q = operand(stage), v = operand(values_of(stage));
    row_sum[0] = row_sum[1] = 0;
    if constexpr (BY_CHANNEL) {
      if (!weigh_by_channel(task, chunk, ring, weights, row_sum)) return release(ring);
    } else {
      prepare(task, chunk, stage, true, task.last || !task.resident);
    }
    if constexpr (PREPARED) {
      if constexpr (NORMALISED) read_sums(task, chunk);
    } else if constexpr (!BY_CHANNEL) {
      const unsigned k = operand(stage + layout.k);
      mma_fence();
      UNROLL for (int panel = 0; panel < PANELS; ++panel) {
        UNROLL for (int step = 0; step < 4; ++step) {
          const int at = panel * (PANEL_BYTES / 16) + step * K_STEP;
          multiply<IN_TYPE, 0, 0>(s, q + at, k + at, panel + step > 0);
        }
      }
      mma_commit();
      if constexpr (GATED) sum_gates(task, chunk);
      mma_wait<0>();
      weigh();
    }
    bars.state_written.wait(state_parity);
    mma_fence();
    UNROLL for (int step = 0; step < 4; ++step) {
      if constexpr (PREPARED) {
        multiply<IN_TYPE, 0, 1>(o, operand(stage + layout.gates) + step * K_STEP, v + step * MN_STEP, step > 0);
      } else {
        multiply_registers<IN_TYPE>(o, weights + 4 * step, v + step * MN_STEP, step > 0);
      }
    }
    // If gated by head or token, Q S is a separate sum, because the code below multiplies its rows by decays.
    const unsigned before = operand(state_copy());
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int step = 0; step < 4; ++step) {
        const int at = panel * (PANEL_BYTES / 16);
        multiply<IN_TYPE, 0, 1>(GATED ? s : o, q + at + step * K_STEP, before + at + step * MN_STEP,
                                !GATED || panel + step > 0);
        if constexpr (NORMALISED) {
          multiply_narrow<IN_TYPE, 0>(divisor, q + at + step * K_STEP,
                                      narrow_operand(memory + layout.key_sum) + (panel * 4 + step) * NARROW_STEP,
                                      panel + step > 0);
        }
      }
    }
    mma_commit();
    mma_wait<0>();
    // The sum is NaN if the thread's first row has a NaN or an infinity. The reason may be a later token's value: a
    // value that is not finite makes an output of every row NaN or infinite, so it is enough to check one row.
    float zeros[4] = {};
    UNROLL for (int i = 0; i < 16; ++i) zeros[i % 4] += 0 * o[i / 2 * 4 + i % 2];
    const bool anew = some_not_finite((zeros[0] + zeros[1]) + (zeros[2] + zeros[3])) && some_value_not_finite(stage);
    const auto let_go = [&] {
      arrive(bars.state_read);
      release(ring);
    };
    if (!anew) let_go();
    state_parity ^= 1;
    if constexpr (GATED) {
      const float factor[2] = {exp2_approx(row_decay[0]), exp2_approx(row_decay[1])};
      UNROLL for (int i = 0; i < 32; ++i) o[i] += factor[i / 2 % 2] * s[i];
      UNROLL for (int i = 0; NORMALISED && i < 4; ++i) divisor[i] *= factor[i / 2];
    }
    float scale[2] = {p.linear.scale, p.linear.scale};
    if constexpr (NORMALISED) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const float sum = sum_of_quad(row_sum[r]) + (divisor[2 * r] + divisor[2 * r + 1]);
        scale[r] = sum != 0 ? 1 / sum : 0;
      }
    }
    if (lane == 0) wait_stores_read();
    __syncwarp();
    store_panel(out_panel(), o, scale[0], scale[1]);
    if (anew) {
      __syncwarp();
      if constexpr (BY_ROW) {
        write_rows_apart(p, index, task, chunk, scale[0], scale[1]);
      } else {
        write_rows_anew(task, chunk, scale);
      }
      let_go();
    }
    fence_stores();
    __syncwarp();
    store_output(task, chunk);
  }

  // Goes over the chunks of the other warpgroup's gather(): helps to prepare these chunks, and releases their stages
  // unless the segment is resident.
  DEVICE void pass_gathered(const Task& task, Ring<STAGES>& ring) {
    if (task.last || ((FEATURE_IS_IDENTITY || PREPARED) && task.resident)) return;
    Ring<STAGES> at = ring;
#pragma unroll 1
    for (int chunk = task.chunk; chunk < task.end; ++chunk) {
      if constexpr (BY_CHANNEL) {
        decay_keys(task, chunk, at);
      } else {
        barriers().full[at.index].wait(at.parity);
        prepare(task, chunk, stage_of(at), false, true);
      }
      if (!task.resident) release(at);
      at.advance();
    }
    if (!task.resident) ring = at;
  }

  DEVICE void run() {
    each_task([&](const Task& task, Ring<STAGES>& ring) {
      pass_gathered(task, ring);
      read_gates(task, task.chunk);
#pragma unroll 1
      for (int chunk = task.chunk; chunk < task.end; ++chunk) {
        compute_chunk(task, chunk, ring);
        ring.advance();
      }
    });
    if (lane == 0) wait_stores_read();  // the threadgroup's memory must exist until then
  }
};

}  // namespace
