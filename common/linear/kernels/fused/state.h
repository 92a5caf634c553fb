// The state of `fused`: the products that add a chunk to S and z, and the initial and final states.
#pragma once

#include "common/linear/kernels/fused/warpgroup.h"

namespace {

struct State : Warpgroup {
  const unsigned epoch;      // flags of this launch are above this number
  float state[BLOCKS][32];   // this thread's part of S: 32 of the 64 x 64 elements of each block
  float key_sum[PANELS][4];  // NORMALISED: the thread's two rows of each panel, each row twice
  float total;               // decay of the segment's chunks until now, log2
  RowDecays totals;          // of the thread's rows, over these chunks
  RowDecays next_decays;     // PREPARED: of the thread's rows, over the next chunk

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
  DEVICE void clear_rows_beyond(int block) {
    UNROLL for (int i = 0; i < 32; ++i) {
      if (channel_of(block % PANELS * 64 + row + i / 2 % 2 * 8) >= HEAD_DIM) state[block][i] = 0;
    }
  }

  // Stores S for the next chunk's Q S.
  DEVICE void store_state() {
    Barriers& bars = barriers();
    bars.state_read.wait(state_parity ^ 1);
    UNROLL for (int block = 0; block < BLOCKS; ++block) {
      if constexpr (HEAD_DIM % 64 != 0) clear_rows_beyond(block);
      store_panel(memory + layout.state + block * PANEL_BYTES, state[block], 1, 1);
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

  // If PREPARED: loads the decays of a chunk, and does not use them yet.
  DEVICE void read_decays(const Task& task, int chunk) {
    if constexpr (PREPARED) {
      const float* const from = p.chunk_decays + (static_cast<long long>(task.head) * p.chunks + task.number +
                                                  min(chunk, max(task.end - 1, 0))) *
                                                     fused_decay_floats(HEAD_DIM);
      UNROLL for (int i = 0; i < 2 * PANELS; ++i) next_decays[i / 2][i % 2] = from[i / 2 * 64 + row + i % 2 * 8];
    }
  }
  // Multiplies the thread's row r of a panel of S, and of z, by the decay of a chunk.
  DEVICE void decay_row(int panel, int r, float factor) {
    UNROLL for (int block = panel; block < BLOCKS; block += PANELS) {
      UNROLL for (int i = 0; i < 16; ++i) state[block][i / 2 * 4 + r * 2 + i % 2] *= factor;
    }
    UNROLL for (int i = 0; NORMALISED && i < 2; ++i) key_sum[panel][2 * r + i] *= factor;
    totals[panel][r] *= factor;
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
    if constexpr (PREPARED) {
      UNROLL for (int i = 0; i < 2 * PANELS; ++i) decay_row(i / 2, i % 2, next_decays[i / 2][i % 2]);
      read_decays(task, chunk + 1);
      // Keeps the multiplications here. If the compiler moves them before a wait, ptxas makes the products wait for one
      // another.
      UNROLL for (int i = 0; i < 32 * BLOCKS; ++i) asm volatile("" : "+f"(state[i / 32][i % 32]));
      UNROLL for (int i = 0; NORMALISED && i < 4 * PANELS; ++i) asm volatile("" : "+f"(key_sum[i / 4][i % 4]));
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

  // By channel: waits for the chunk, writes its table of decays (channels.h), and says so.
  DEVICE void write_decays(const Task& task, int chunk, const Ring<STAGES>& ring) {
    barriers().full[ring.index].wait(ring.parity);
    unsigned char* const stage = stage_of(ring);
    const int rows = task.tokens - chunk * CHUNK;
    if (p.linear.starts && rows < CHUNK) {
      UNROLL for (int panel = 0; panel < COLUMN_PANELS; ++panel)
          clear_rows(stage + layout.v + panel * PANEL_BYTES, rows);
      fence_stores();
    }
#pragma unroll 1
    for (int i = thread; i < 64 * PANELS; i += WARPGROUP) {  // 32 tokens of two channels
      const int pair = i % (32 * PANELS), part = i / (32 * PANELS);
      const unsigned char* const gates = stage + layout.gates + pair / 16 * PANEL_BYTES + pair % 2 * 8;
      float2 decays[2];
      UNROLL for (int half = 0; half < 2; ++half) {
        float2 sum{};
        UNROLL for (int of_half = 0; of_half < 16; ++of_half) {
          const int token = part * 32 + half * 16 + of_half;
          const float2 gate =
              *reinterpret_cast<const float2*>(gates + token * PANEL_ROW_BYTES + (pair % 16 / 2 ^ of_half % 8) * 16);
          if (token < rows) sum.x += gate.x, sum.y += gate.y;
        }
        decays[half] = {exp2_approx(sum.x * log2_e), exp2_approx(sum.y * log2_e)};
        *reinterpret_cast<float2*>(decays_of(2 * part + half) + 2 * pair) = decays[half];
      }
      *reinterpret_cast<float2*>(decays_of(FIRST_HALF + part) + 2 * pair) = {decays[0].x * decays[1].x,
                                                                             decays[0].y * decays[1].y};
    }
    __syncwarp();
    named_arrive(decays_barrier, 3 * WARPGROUP);
  }

  // By channel: S = decays S + K^T V, after write_decays(). The other warpgroups have replaced K by K with its decays
  // to the chunk's end.
  DEVICE void add_decayed_chunk(const Ring<STAGES>& ring) {
    sync();
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int r = 0; r < 2; ++r) {
        const int channel = channel_of(panel * 64 + row + r * 8);
        decay_row(panel, r, decays_of(FIRST_HALF)[channel] * decays_of(SECOND_HALF)[channel]);
      }
    }
    __syncwarp();
    named_sync(keys_barrier, 3 * WARPGROUP);
    const unsigned char* const stage = stage_of(ring);
    const unsigned k = operand(stage + layout.k), v = operand(stage + layout.v);
    mma_fence();
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      UNROLL for (int step = 0; step < CHUNK / 16; ++step) {
        const unsigned at = k + panel * (PANEL_BYTES / 16) + step * MN_STEP;
        UNROLL for (int part = 0; part < COLUMN_PANELS; ++part) {
          multiply<IN_TYPE, 1, 1>(state[part * PANELS + panel], at, v + part * (PANEL_BYTES / 16) + step * MN_STEP, 1);
        }
        if constexpr (NORMALISED) {
          multiply_narrow<IN_TYPE, 1>(key_sum[panel], at, narrow_operand(memory + layout.weights) + step * NARROW_STEP,
                                      1);
        }
      }
    }
    mma_commit();
    mma_wait<0>();
  }

  // ---- initial and final states

  DEVICE void clear_state() {
    UNROLL for (int block = 0; block < BLOCKS; ++block) {
      UNROLL for (int i = 0; i < 32; ++i) state[block][i] = 0;
      UNROLL for (int i = 0; block < PANELS && i < 4; ++i) key_sum[block][i] = 0;
    }
  }
  // Calls act(element, index in a [sequences, heads, HEAD_DIM, value_dim] tensor) for each of this thread's elements
  // that exists.
  template <class Act>
  DEVICE void each_element(const Task& task, Act act) {
    const long long base =
        (static_cast<long long>(task.sequence) * p.linear.heads + task.head) * HEAD_DIM * p.value_dim;
    UNROLL for (int block = 0; block < BLOCKS; ++block) {
      UNROLL for (int i = 0; i < 32; ++i) {
        const int r = channel_of(block % PANELS * 64 + row + i / 2 % 2 * 8);
        const int c = (task.slice * COLUMN_PANELS + block / PANELS) * 64 + i / 4 * 8 + column + i % 2;
        if (r < HEAD_DIM && c < p.value_dim) act(state[block][i], base + static_cast<long long>(r) * p.value_dim + c);
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
          const int r = channel_of(panel * 64 + row + i / 2 * 8);
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
          const int at = channel_of(panel * 64 + row + r * 8);
          if (at < HEAD_DIM) sums[at] = key_sum[panel][2 * r];
        }
      }
    }
  }
};

}  // namespace
