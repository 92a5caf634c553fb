// The states of segments in device memory, and the loop of the warpgroup that has the state: before a segment's chunks
// it publishes what the segment adds, and computes the state before the segment from what earlier segments have
// published.
#pragma once

#include "common/kernel/grid.h"
#include "common/linear/kernels/fused/state.h"

namespace {

// Reads from the L2 cache, which has the data that other threadgroups have written.
DEVICE float4 load_shared_state(const float4* from) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
DEVICE float load_shared_float(const float* from) {
  float x;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
  return x;
}

// What a segment has published: its own state, or the state after the segment. The segment's flag is this value plus
// the launch's epoch.
enum Published { OWN = 1, INCLUSIVE = 2 };

struct Segments : State {
  using State::State;

  // Returns the address of this thread's part of a segment's own state, or of the state after this segment and all
  // segments before it.
  DEVICE float4* published(int segment, int slot, Published what) const {
    const long long place = static_cast<long long>(segment % (2 * p.reach)) * p.slots + slot;
    return reinterpret_cast<float4*>(p.states + ((place * 2 + (what - 1))) * STATE_FLOATS) + thread;
  }
  DEVICE unsigned* flag(int segment, int slot) const {
    return p.flags + (static_cast<long long>(segment) * p.slots + slot);
  }
  // By channel: the decay of a segment for the thread's row i % 2 of panel i / 2.
  DEVICE float* row_total(int segment, int slot, int i) const {
    return p.totals + (static_cast<long long>(segment) * p.slots + slot) * (64 * PANELS) + i / 2 * 64 + row + i % 2 * 8;
  }
  // Sets the segment's flag after all threads have stored a state.
  DEVICE void publish(const Task& task, Published what) {
    if constexpr (BY_ROW) {
      if (lane % 4 == 0 && what == OWN) {
        UNROLL for (int i = 0; i < 2 * PANELS; ++i) * row_total(task.segment, task.slot, i) = totals[i / 2][i % 2];
      }
    } else {
      if (thread == 0 && what == OWN) {
        p.totals[(static_cast<long long>(task.segment) * p.slots + task.slot)] = total;
      }
    }
    sync();
    if (thread == 0) store_flag(flag(task.segment, task.slot), epoch + what);
  }
  /// Returns four floats of the state, or, for i = 8, of z. z goes with the blocks of the first columns.
  DEVICE float* quad(int block, int i) { return i < 8 ? state[block] + 4 * i : key_sum[block]; }
  DEVICE static constexpr int quads_of(int block) { return block < PANELS ? QUADS : 8; }
  DEVICE void put_state(float4* to) {
    UNROLL for (int block = 0; block < BLOCKS; ++block) {
      UNROLL for (int i = 0; i < quads_of(block); ++i) {
        const float* x = quad(block, i);
        to[(block * QUADS + i) * WARPGROUP] = make_float4(x[0], x[1], x[2], x[3]);
      }
    }
  }
  // state += the sum of COUNT published states, each times its factor. All loads of a panel run at once.
  template <int COUNT>
  DEVICE void add_states(const float4* const (&from)[COUNT], const float (&factor)[COUNT]) {
    UNROLL for (int panel = 0; panel < PANELS; ++panel) {
      float4 x[COUNT][QUADS];
      UNROLL for (int n = 0; n < COUNT; ++n) {
        UNROLL for (int i = 0; i < QUADS; ++i) x[n][i] = load_shared_state(from[n] + (panel * QUADS + i) * WARPGROUP);
      }
      UNROLL for (int n = 0; n < COUNT; ++n) {
        UNROLL for (int i = 0; i < QUADS; ++i) {
          float* to = quad(panel, i);
          to[0] += factor[n] * x[n][i].x, to[1] += factor[n] * x[n][i].y;
          to[2] += factor[n] * x[n][i].z, to[3] += factor[n] * x[n][i].w;
        }
      }
    }
  }

  // By channel: state += a published state, each row times its factor.
  DEVICE void add_rows(const float4* from, const RowDecays& factor) {
    UNROLL for (int block = 0; block < BLOCKS; ++block) {
      float4 x[QUADS];
      UNROLL for (int i = 0; i < quads_of(block); ++i) x[i] = load_shared_state(from + (block * QUADS + i) * WARPGROUP);
      const float(&by)[2] = factor[block % PANELS];
      UNROLL for (int i = 0; i < quads_of(block); ++i) {
        float* to = quad(block, i);
        to[0] += by[0] * x[i].x, to[1] += by[0] * x[i].y;
        to[2] += by[1] * x[i].z, to[3] += by[1] * x[i].w;
      }
    }
  }

  // The memory for published states is a ring. Waits until this segment's part of the ring is free: until the segment
  // that used this part before, and all segments that may look back to it, have published INCLUSIVE.
  DEVICE void wait_for_place(const Task& task) {
    const int segment = task.segment - 2 * p.reach + lane;
    if (segment >= 0 && lane <= p.reach) {
      while (static_cast<int>(load_flag(flag(segment, task.slot)) - epoch) < INCLUSIVE) {
      }
    }
    __syncwarp();
  }

  // Computes the state before the segment from what earlier segments have published. Each warp reads the flags itself.
  DEVICE void look_back(const Task& task) {
    clear_state();
    const int segment = task.segment - 1 - lane;
    const bool looks = segment >= 0 && lane < p.reach;
    unsigned inclusive;
    int count;
    while (true) {
      const int seen = looks ? static_cast<int>(load_flag(flag(segment, task.slot)) - epoch) : 0;
      inclusive = __ballot_sync(~0u, seen == INCLUSIVE);
      const unsigned ready = __ballot_sync(~0u, seen >= OWN);
      count = __ffs(inclusive) - 1;  // segments between the nearest INCLUSIVE segment and this segment
      if (count >= 0 && (ready & ((1u << count) - 1)) == (1u << count) - 1) break;
    }
    if constexpr (BY_ROW) {
      RowDecays decay;  // from the end of segment task.segment - 1 - i to the start of this segment
      UNROLL for (int n = 0; n < 2 * PANELS; ++n) decay[n / 2][n % 2] = 1;
#pragma unroll 1
      for (int i = 0; i <= count; ++i) {
        const int earlier = task.segment - 1 - i;
        add_rows(published(earlier, task.slot, i == count ? INCLUSIVE : OWN), decay);
        if (i == count) break;
        UNROLL for (int n = 0; n < 2 * PANELS; ++n) {
          decay[n / 2][n % 2] *= load_shared_float(row_total(earlier, task.slot, n));
        }
      }
      return;
    }
    // log2 of the decay from the end of the lane's segment to the start of this segment.
    float own_total = 0, decay = 0;
    if constexpr (GATED) {
      if (lane < count) {
        own_total = load_shared_float(p.totals + (static_cast<long long>(segment) * p.slots + task.slot));
      }
      decay = own_total;
      UNROLL for (int step = 1; step < 32; step *= 2) {
        const float x = __shfl_up_sync(~0u, decay, step);
        if (lane >= step) decay += x;
      }
      decay -= own_total;
    }
    const auto at = [&](int i) { return published(task.segment - 1 - i, task.slot, i == count ? INCLUSIVE : OWN); };
    const auto factor = [&](int i) { return GATED ? exp2_approx(__shfl_sync(~0u, decay, i)) : 1.0f; };
    int i = 0;
    if constexpr (PANELS <= 2) {
#pragma unroll 1
      for (; i < count; i += 2) add_states<2>({at(i), at(i + 1)}, {factor(i), factor(i + 1)});
    }
#pragma unroll 1
    for (; i <= count; ++i) add_states<1>({at(i)}, {factor(i)});
  }

  // Adds the segment's chunks to `state`, which the caller has set to zero, or to the initial state if the segment is
  // the first. Returns the ring after these chunks.
  DEVICE Ring<STAGES> gather(const Task& task, Ring<STAGES> ring) {
    total = 0;
    UNROLL for (int n = 0; BY_ROW && n < 2 * PANELS; ++n) totals[n / 2][n % 2] = 1;
    read_gates(task, task.chunk);
    read_decays(task, task.chunk);
#pragma unroll 1
    for (int chunk = task.chunk; chunk < task.end; ++chunk) {
      if constexpr (BY_CHANNEL) {
        write_decays(task, chunk, ring);
        add_decayed_chunk(ring);
      } else {
        add_chunk(task, chunk, ring, false, true);
      }
      if (!task.resident) release(ring);
      ring.advance();
    }
    return ring;
  }

  DEVICE void before_segment(const Task& task, Ring<STAGES>& ring) {
    if (task.segment == 0) {
      load_initial(task);
    } else {
      clear_state();
    }
    if (!task.last) {
      const Ring<STAGES> next_ring = gather(task, ring);
      if (!task.resident) ring = next_ring;
      wait_for_place(task);
      put_state(published(task.segment, task.slot, task.segment == 0 ? INCLUSIVE : OWN));
      publish(task, task.segment == 0 ? INCLUSIVE : OWN);
    }
    if (task.segment == 0) {
      if (!task.last) load_initial(task);
      return;
    }
    look_back(task);
    if (task.last) return;
    // The state before this segment and the segment's own state give the state that the next segments need.
    const float factor = GATED ? exp2_approx(total) : 1.0f;
    const float4* const from = published(task.segment, task.slot, OWN);
    float4* const to = published(task.segment, task.slot, INCLUSIVE);
    UNROLL for (int block = 0; block < BLOCKS; ++block) {
      UNROLL for (int i = 0; i < quads_of(block); ++i) {
        const float* x = quad(block, i);
        const float first = BY_ROW ? totals[block % PANELS][0] : factor;
        const float second = BY_ROW ? totals[block % PANELS][1] : factor;
        float4 y = load_shared_state(from + (block * QUADS + i) * WARPGROUP);
        y.x += first * x[0], y.y += first * x[1], y.z += second * x[2], y.w += second * x[3];
        to[(block * QUADS + i) * WARPGROUP] = y;
      }
    }
    publish(task, INCLUSIVE);
  }

  DEVICE void run() {
    if constexpr (NORMALISED && !GATED) {  // all decays are 1
      const unsigned one = pack<IN_TYPE>(1, 1);
      if (thread < 64) store_weights({one, one, one, one});
      fence_stores();
      sync();
    }
    each_task([&](const Task& task, Ring<STAGES>& ring) {
      before_segment(task, ring);
      read_gates(task, task.chunk);
      read_decays(task, task.chunk);
#pragma unroll 1
      for (int chunk = task.chunk; chunk < task.end; ++chunk) {
        if constexpr (BY_CHANNEL) write_decays(task, chunk, ring);
        store_state();
        if constexpr (BY_CHANNEL) {
          add_decayed_chunk(ring);
        } else {
          add_chunk(task, chunk, ring, true, task.last || !task.resident);
        }
        release(ring);
        ring.advance();
      }
      if (task.last) store_final(task);
    });
  }
};

}  // namespace
