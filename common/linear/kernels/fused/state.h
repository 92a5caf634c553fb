// The state of `fused`: the products that add a chunk to S and z, and the initial and final states.
#pragma once

#include "common/linear/kernels/fused/warpgroup.h"

namespace {

struct State : Warpgroup {
  const unsigned epoch;      // flags of this launch are above this number
  float state[PANELS][32];   // this thread's part of S: 32 of the 64 x 64 elements of each panel
  float key_sum[PANELS][4];  // NORMALISED: the thread's two rows of each panel, each row twice
  float total;               // decay of the segment's chunks until now, log2

  DEVICE State(const FusedParams& params, unsigned launches) : Warpgroup(params, 0), epoch(launches) {}

  DEVICE void sync() {
    __syncwarp();
    named_sync(state_barrier, WARPGROUP);
  }

  // Stores z as the sum of two numbers of 16 bits: z rounded, and the difference between z and this first number,
  // rounded. Four columns have the first number, four columns the second number.
  DEVICE void store_key_sum() {
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const float z = key_sum[panel][2 * r];
        auto* const to = reinterpret_cast<unsigned short*>(memory + layout.key_sum + panel * 1024) +
                         (row + 8 * r) / 8 * 64 + column * 8 + row % 8;
        store_float<IN_TYPE>(to, 0, z);
        store_float<IN_TYPE>(to, 8, z - load_float<IN_TYPE>(to, 0));
      }
    }
  }
  // Clears rows beyond HEAD_DIM. K is 0 in these rows, but 0 times an infinite value is NaN, and the product Q S would
  // spread the NaN to all outputs.
  DEVICE void clear_rows_beyond(int panel) {
    UNROLL for (int i = 0; i < 32; ++i) {
      if (panel * 64 + row + i / 2 % 2 * 8 >= HEAD_DIM) state[panel][i] = 0;
    }
  }

  // Stores S for the next chunk's Q S.
  DEVICE void store_state() {
    Barriers& bars = barriers();
    bars.state_read.wait(state_parity ^ 1);
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      if constexpr (HEAD_DIM % 64 != 0) clear_rows_beyond(panel);
      store_panel(memory + layout.state + panel * PANEL_BYTES, state[panel], 1, 1);
    }
    if constexpr (NORMALISED) store_key_sum();
    fence_stores();
    arrive(bars.state_written);
    state_parity ^= 1;
  }

  // Multiplies V of each token by the decay from the token to the chunk's end, and stores the result. If NORMALISED,
  // this function stores these decays too.
  DEVICE void decay_values(const unsigned char* stage, float chunk_sum) {
    UNROLL for (int i = 0; i < 4; ++i) {
      const int at = i * WARPGROUP + thread;  // eight of a token's 64 columns
      const float factor = exp2_approx(chunk_sum - sums()[at / 8]);
      reinterpret_cast<uint4*>(memory + layout.values)[at] =
          each_of_eight(reinterpret_cast<const uint4*>(stage + layout.v)[at], [&](float y) { return y * factor; });
    }
    if constexpr (NORMALISED) {
      unsigned pairs[4];
      UNROLL for (int i = 0; i < 4; ++i) {
        const float* from = sums() + thread / 8 % 8 * 8 + 2 * i;
        pairs[i] = pack<IN_TYPE>(exp2_approx(chunk_sum - from[0]), exp2_approx(chunk_sum - from[1]));
      }
      if (thread < 64) store_weights(pairs);
    }
    fence_stores();
  }
  // For threads 0 to 63: each thread stores eight tokens of one of the eight columns.
  DEVICE void store_weights(const unsigned (&x)[4]) {
    *reinterpret_cast<uint4*>(memory + layout.weights + thread * 16) = make_uint4(x[0], x[1], x[2], x[3]);
  }

  DEVICE void decay_state(float sum) {
    const float factor = exp2_approx(sum);
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int i = 0; i < 32; ++i) state[panel][i] *= factor;
      UNROLL for (int i = 0; NORMALISED && i < 4; ++i) key_sum[panel][i] *= factor;
    }
  }

  // S = e^G_end S + K^T V; if gated, V is multiplied by its decays.
  DEVICE void add_chunk(const Task& task, int chunk, const Ring<STAGES>& ring, bool with_q, bool with_k) {
    barriers().full[ring.index].wait(ring.parity);
    unsigned char* const stage = stage_of(ring);
    prepare(task, chunk, stage, with_q, with_k);
    if constexpr (GATED) {
      const float sum = sum_gates(task, chunk);
      decay_values(stage, sum);
      decay_state(sum);
      total += sum;
      sync();
    }
    const unsigned k = operand(stage + layout.k), v = operand(GATED ? memory + layout.values : stage + layout.v);
    mma_fence();
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int step = 0; step < CHUNK / 16; ++step) {
        const unsigned at = k + panel * (PANEL_BYTES / 16) + step * MN_STEP;
        multiply<IN_TYPE, 1, 1>(state[panel], at, v + step * MN_STEP, 1);
        if constexpr (NORMALISED) {
          multiply_narrow<IN_TYPE, 1>(key_sum[panel], at, narrow_operand(memory + layout.weights) + step * NARROW_STEP,
                                      1);
        }
      }
    }
    mma_commit();
    mma_wait<0>();
    if constexpr (GATED) sync();  // all products have read `values` and `weights`, which the next chunk overwrites
  }

  // ---- initial and final states

  DEVICE void clear_state() {
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int i = 0; i < 32; ++i) state[panel][i] = 0;
      UNROLL for (int i = 0; i < 4; ++i) key_sum[panel][i] = 0;
    }
  }
  // Calls act(element, index in a [sequences, heads, HEAD_DIM, value_dim] tensor) for each of this thread's elements
  // that exists.
  template <class Act>
  DEVICE void each_element(const Task& task, Act act) {
    const long long base =
        (static_cast<long long>(task.sequence) * p.linear.heads + task.head) * HEAD_DIM * p.value_dim;
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int i = 0; i < 32; ++i) {
        const int r = panel * 64 + row + i / 2 % 2 * 8;
        const int c = task.slice * 64 + i / 4 * 8 + column + i % 2;
        if (r < HEAD_DIM && c < p.value_dim) act(state[panel][i], base + static_cast<long long>(r) * p.value_dim + c);
      }
    }
  }
  DEVICE void load_initial(const Task& task) {
    clear_state();
    const float* const from = p.linear.initial_state;
    if (from) each_element(task, [&](float& x, long long at) { x = from[at]; });
    if (NORMALISED && p.linear.initial_key_sum) {
      const float* const sums = p.linear.initial_key_sum + key_sum_place(task);
      UNROLL for (int panel = 0; panel < PANELS; ++panel) {
        UNROLL for (int i = 0; i < 4; ++i) {
          const int r = panel * 64 + row + i / 2 * 8;
          if (r < HEAD_DIM) key_sum[panel][i] = sums[r];
        }
      }
    }
  }
  DEVICE long long key_sum_place(const Task& task) const {
    return (static_cast<long long>(task.sequence) * p.linear.heads + task.head) * HEAD_DIM;
  }
  DEVICE void store_final(const Task& task) {
    float* const to = p.linear.final_state;
    if (to) each_element(task, [&](float& x, long long at) { to[at] = x; });
    if (NORMALISED && p.linear.final_key_sum && task.slice == 0 && lane % 4 == 0) {
      float* const sums = p.linear.final_key_sum + key_sum_place(task);
      UNROLL for (int panel = 0; panel < PANELS; ++panel) {
        UNROLL for (int r = 0; r < 2; ++r) {
          const int at = panel * 64 + row + r * 8;
          if (at < HEAD_DIM) sums[at] = key_sum[panel][2 * r];
        }
      }
    }
  }
};

}  // namespace
