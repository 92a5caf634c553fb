// The producer of `fused`: one thread that takes tasks and issues the tensor copies of their chunks.
#pragma once

#include "common/kernel/grid.h"
#include "common/linear/kernels/fused/schedule.h"

namespace {

// Returns the policy of the second-level cache for the copies. If each element is read once, its line is evicted first,
// so that the cache keeps lines that still have to be written to memory.
DEVICE unsigned long long policy_of_copies(bool read_once) {
  unsigned long long policy;
  if (read_once) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  } else {
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
  }
  return policy;
}

// Does what copy_box() of wgmma.h does, with a policy, and for the fifth coordinate 0.
DEVICE void copy_box_with(void* target, const TensorMap& map, Barrier& full, int c0, int c1, int c2, int c3,
                          unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, "
      "%5, %6, %7}], [%2], %8;" ::"r"(shared_address(target)),
      "l"(&map), "r"(shared_address(&full)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(0), "l"(policy)
      : "memory");
}

DEVICE void copy_chunk(const FusedParams& p, const Task& task, int number, int chunk, bool with_q,
                       unsigned long long policy, Ring<STAGES>& ring) {
  Barriers& bars = barriers();
  unsigned char* const stage = memory + ring.index * layout.stage_bytes;
  Barrier& full = bars.full[ring.index];
  bars.empty[ring.index].wait(ring.parity ^ 1);
  bars.task[ring.index] = number;
  const bool weights = PREPARED && with_q;
  full.arrive_expect((PANELS * (with_q ? 2 : 1) + COLUMN_PANELS + (BY_CHANNEL ? 2 * PANELS : weights)) * PANEL_BYTES);
  const int row = task.first_row + chunk * CHUNK;
  UNROLL for (int box = 0; BY_CHANNEL && box < 2 * PANELS; ++box) {
    copy_box_with(stage + layout.gates + box * PANEL_BYTES, p.gates, full, box * 32, row, task.head, task.batch,
                  policy);
  }
  const int key_row = PREPARED ? (task.number + chunk) * CHUNK : row, batch = PREPARED ? 0 : task.batch;
  UNROLL for (int panel = 0; panel < PANELS; ++panel) {
    copy_box_with(stage + layout.k + panel * PANEL_BYTES, p.k, full, panel * 64, key_row, task.head, batch, policy);
    if (with_q) copy_box_with(stage + panel * PANEL_BYTES, p.q, full, panel * 64, key_row, task.head, batch, policy);
  }
  UNROLL for (int panel = 0; panel < COLUMN_PANELS; ++panel) {
    copy_box_with(stage + layout.v + panel * PANEL_BYTES, p.v, full, (task.slice * COLUMN_PANELS + panel) * 64, row,
                  task.head, task.batch, policy);
  }
  if (weights) copy_box_with(stage + layout.gates, p.gates, full, 0, key_row, task.head, 0, policy);
  ring.advance();
}

// Passes a stage without a chunk, to tell the consumers `number`: the number of a task without chunks, or
// no_more_tasks.
DEVICE void tell(int number, Ring<STAGES>& ring) {
  Barriers& bars = barriers();
  bars.empty[ring.index].wait(ring.parity ^ 1);
  bars.task[ring.index] = number;
  bars.full[ring.index].arrive();
  ring.advance();
}

DEVICE void produce(const FusedParams& p) {
  Ring<STAGES> ring;
  const unsigned long long policy = policy_of_copies(p.slices == 1 && p.tasks == p.slots);
  int next;
  for (int number = blockIdx.x; number < p.tasks; number = next) {
    next = static_cast<int>(next_item(p.counters));
    const Task task = task_of(p, number);
    if (is_beyond(task)) continue;
    if (!task.last && !task.resident) {
#pragma unroll 1
      for (int chunk = task.chunk; chunk < task.end; ++chunk) copy_chunk(p, task, number, chunk, false, policy, ring);
    }
#pragma unroll 1
    for (int chunk = task.chunk; chunk < task.end; ++chunk) copy_chunk(p, task, number, chunk, true, policy, ring);
    if (task.chunk >= task.end) tell(number, ring);
  }
  tell(no_more_tasks, ring);
  if (leave(p.counters)) p.counters[2] += 1;
}

}  // namespace
