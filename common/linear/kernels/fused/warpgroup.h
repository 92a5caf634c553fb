// Members of the warpgroups of `fused`: one has the state, the others compute the outputs. They walk the same tasks,
// sum the gates, and prepare a chunk's tiles for the products. A thread holds parts of rows `row` and `row` + 8 of 64:
// see common/kernel/wgmma.h.
#pragma once

#include "common/kernel/wgmma_square.h"
#include "common/linear/kernels/exact_tokens.h"
#include "common/linear/kernels/fused/blocks.h"
#include "common/linear/kernels/fused/channels.h"
#include "common/linear/kernels/fused/schedule.h"

namespace {

/// Calls act(x) for both 16-bit elements of a pair, and returns the pair of results.
template <class Act>
DEVICE unsigned each_of_pair(unsigned pair, Act act) {
  const float2 x = floats_of_pair(pair);
  return pack<IN_TYPE>(act(x.x), act(x.y));
}
template <class Act>
DEVICE uint4 each_of_eight(uint4 x, Act act) {
  return make_uint4(each_of_pair(x.x, act), each_of_pair(x.y, act), each_of_pair(x.z, act), each_of_pair(x.w, act));
}

DEVICE void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

struct Warpgroup {
  const FusedParams& p;
  const int index;  // 0: has the state; 1, by channel also 2: computes outputs
  const int thread = threadIdx.x % WARPGROUP, warp = thread / 32, lane = threadIdx.x % 32;
  const int row = warp * 16 + lane / 4;  // of the 64
  const int column = lane % 4 * 2;       // of 8
  unsigned state_parity = 0;             // of the next copy of S
  float gates[2];                        // gates of the next chunk's tokens 2 * lane and 2 * lane + 1

  DEVICE Warpgroup(const FusedParams& params, int number) : p(params), index(number) {}

  DEVICE static unsigned char* stage_of(const Ring<STAGES>& ring) { return memory + ring.index * layout.stage_bytes; }
  /// Arrives at the barrier when all threads of the warp have done their work.
  DEVICE void arrive(Barrier& barrier) {
    __syncwarp();
    if (lane == 0) barrier.arrive();
    __syncwarp();
  }
  DEVICE void release(const Ring<STAGES>& ring) { arrive(barriers().empty[ring.index]); }
  /// Returns which of the slice's panels of value columns this warpgroup has, and the panel's first column.
  DEVICE int part() const { return COLUMN_PANELS == 1 ? 0 : index - 1; }
  DEVICE int first_column(const Task& task) const { return (task.slice * COLUMN_PANELS + part()) * 64; }
  DEVICE const unsigned char* values_of(const unsigned char* stage) const {
    return stage + layout.v + part() * PANEL_BYTES;
  }
  DEVICE unsigned char* state_copy() const { return memory + layout.state + part() * (PANELS * PANEL_BYTES); }
  DEVICE unsigned char* out_panel() const { return memory + layout.out + part() * PANEL_BYTES; }
  /// Returns this warp's own copy of the sums of the chunk's log decays.
  DEVICE float* sums() const {
    return reinterpret_cast<float*>(memory + layout.barriers + 1024) + (index * 4 + warp) * CHUNK;
  }

  // Returns the address of a lane's 16 bytes in a 64 x 64 panel, for stmatrix of two groups of 8 columns.
  DEVICE unsigned matrix_address(const void* panel) const {
    return shared_address(panel) + (warp * 16 + lane % 16) * PANEL_ROW_BYTES + (lane / 16 ^ lane % 8) * 16;
  }
  DEVICE void store_panel(void* panel, const float (&x)[32], float a, float b) {
    const unsigned to = matrix_address(panel);
    UNROLL for (int j = 0; j < 4; ++j) {
      const float* d = x + 8 * j;
      store_matrices(to ^ j * 32, pack<IN_TYPE>(d[0] * a, d[1] * a), pack<IN_TYPE>(d[2] * b, d[3] * b),
                     pack<IN_TYPE>(d[4] * a, d[5] * a), pack<IN_TYPE>(d[6] * b, d[7] * b));
    }
  }

  // ---- gates

  // Loads a chunk's gates, and does not use them yet. So the thread does not wait for the loads.
  DEVICE void read_gates(const Task& task, int chunk) {
    if constexpr (GATED) {
      if (chunk >= task.end) return;
      const LinearParams& a = p.linear;
      UNROLL for (int i = 0; i < 2; ++i) {
        const int token = min(chunk * CHUNK + 2 * lane + i, task.tokens - 1);
        gates[i] = GATE == GATE_HEAD ? a.gate[task.head]
                                     : a.gate[task.batch * a.gate_strides.batch + task.head * a.gate_strides.head +
                                              (task.first_row + token) * a.gate_strides.row];
      }
    }
  }

  // Computes the sums of this chunk's gates, as logarithms in base 2, and loads the next chunk's gates. Returns the sum
  // of all gates of the chunk.
  DEVICE float sum_gates(const Task& task, int chunk) {
    constexpr float smallest = -200;  // 2^-200 is 0 in f32; sums stay finite
    float gate[2];
    UNROLL for (int i = 0; i < 2; ++i) {
      gate[i] = chunk * CHUNK + 2 * lane + i < task.tokens ? at_least(gates[i] * log2_e, smallest) : 0.0f;
    }
    read_gates(task, chunk + 1);
    float sum = gate[0] + gate[1], before = 0;  // sum - gate[1] would be NaN if gate[1] is NaN
    UNROLL for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(~0u, sum, step);
      if (lane < step) continue;
      before += other;
      sum += other;
    }
    float* const to = sums();
    __syncwarp();
    *reinterpret_cast<float2*>(to + 2 * lane) = make_float2(before + gate[0], sum);
    __syncwarp();
    return __shfl_sync(~0u, sum, 31);
  }

  // ---- preparing a chunk's tiles for the products

  // Applies f to a tile's elements. Rows from `rows` on become zero, because f(0) need not be 0.
  DEVICE void map_features(unsigned char* tile, int rows) {
#pragma unroll 2
    for (int i = index * WARPGROUP + thread; i < PANELS * 512; i += 2 * WARPGROUP) {
      const int r = i / 8 % 64, group = i % 8 ^ r % 8;
      if (i / 512 * 64 + group * 8 >= HEAD_DIM) continue;
      uint4& x = reinterpret_cast<uint4*>(tile)[i];
      x = each_of_eight(x, [&](float y) { return r < rows ? feature(y, p.linear.feature_data) : 0.0f; });
    }
  }
  // Clears the rows from `rows` on. In the tensor these rows belong to the next sequence.
  DEVICE void clear_rows(unsigned char* panel, int rows) {
    for (int i = rows * 8 + thread; i < 512; i += WARPGROUP)
      reinterpret_cast<uint4*>(panel)[i] = make_uint4(0, 0, 0, 0);
  }
  // Applies the feature map to the chunk's tiles, and clears rows of other sequences. If a chunk needs a
  // change, both warpgroups must call prepare() for this chunk, because prepare() waits for both.
  DEVICE void prepare(const Task& task, int chunk, unsigned char* stage, bool with_q, bool with_k) {
    const int rows = task.tokens - chunk * CHUNK;
    const bool clears = p.linear.starts && rows < CHUNK;
    if constexpr (FEATURE_IS_IDENTITY || PREPARED) {
      if (!clears) return;
      for (int panel = index; panel < PANELS; panel += 2) clear_rows(stage + layout.k + panel * PANEL_BYTES, rows);
    } else {
      if (with_q) map_features(stage, CHUNK);
      if (with_k) map_features(stage + layout.k, rows);
    }
    if (clears && index == 0) clear_rows(stage + layout.v, rows);
    fence_stores();
    __syncwarp();
    named_sync(both_barrier, 2 * WARPGROUP);
  }
  /// Calls act(task, ring) for each of the threadgroup's tasks that has chunks or a final state.
  template <class Act>
  DEVICE void each_task(Act act) {
    Ring<STAGES> ring;
    while (true) {
      Barriers& bars = barriers();
      bars.full[ring.index].wait(ring.parity);
      const int number = bars.task[ring.index];
      if (number == no_more_tasks) break;
      const Task task = task_of(p, number);
      act(task, ring);
      if (task.chunk >= task.end) {
        release(ring);
        ring.advance();
      }
    }
  }
};

}  // namespace
